"""Evaluation on several ranks, compared with one process."""

import math
import time

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import horovod.torch as hvd
from tests.ranks import on_ranks

SCORES = torch.randn(60, 5, generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(0, 5, (60,), generator=torch.Generator().manual_seed(2))


class Stream(IterableDataset):
    """The samples of this rank, without a length."""

    def __init__(self, samples, indices):
        self.samples, self.indices = samples, indices

    def __iter__(self):
        return (self.samples[index] for index in self.indices)


def results(loader):
    loss, accuracy, perplexity = hvd.Metric("mean"), hvd.Metric("accuracy"), hvd.Metric("perplexity")
    f1 = hvd.Metric("f1", classes=5)
    for scores, labels in loader:
        each = torch.nn.functional.cross_entropy(scores.double(), labels, reduction="none")
        loss.update(each)
        accuracy.update(scores, labels)
        f1.update(scores.argmax(1), labels)
        perplexity.update(each, torch.ones(len(labels)))
    return loss, accuracy, f1, perplexity


@on_ranks(3)
def test_metrics_equal_one_process_for_any_number_of_samples():
    for number in (0, 1, 2, 3, 4, 60):
        data = TensorDataset(SCORES[:number], LABELS[:number])
        sampler = hvd.EvalSampler(data)
        lengths = hvd.allgather(torch.tensor([len(sampler)])).tolist()
        assert sum(lengths) == number
        assert max(lengths) - min(lengths) <= 1
        whole = [metric._result() for metric in results(DataLoader(data, 7))]  # one process
        for loader in (DataLoader(data, 4, sampler=sampler), DataLoader(Stream(data, list(sampler)), 2)):
            actual = [metric.compute() for metric in results(loader)]
            assert repr(actual) == repr(whole), "to the last bit, NaN for no samples"


def torchmetrics_of_all_ranks():
    from torchmetrics import MeanMetric
    from torchmetrics.classification import MulticlassAUROC, MulticlassF1Score

    for number in (1, 2, 4, 60):
        data = TensorDataset(SCORES[:number], LABELS[:number])
        own = DataLoader(data, 4, sampler=hvd.EvalSampler(data))
        for kind in (MulticlassF1Score, MulticlassAUROC, lambda classes: MeanMetric()):
            metric, whole = kind(5), kind(5)
            for one, loader in ((metric, own), (whole, DataLoader(data, number))):
                for scores, labels in loader:
                    one.update(*((scores[:, 0],) if isinstance(one, MeanMetric) else (scores, labels)))
            count = metric._update_count
            assert float(hvd.compute_metric(metric)) == pytest.approx(float(whole.compute()), abs=1e-6)
            assert metric._update_count == count
    with pytest.raises(ValueError, match="contains no other metrics, got CompositionalMetric"):
        hvd.compute_metric(MeanMetric() + 1)


@pytest.mark.heavy
def test_metrics_of_torchmetrics(pool):
    pytest.importorskip("lightning")  # which installs torchmetrics
    pool(3).run(torchmetrics_of_all_ranks)


@on_ranks(3)
def test_predictions_are_gathered_by_id():
    rank = hvd.rank()
    ids = {0: [4, 0, 2], 1: [], 2: [3, 2, 1]}[rank]  # 2 is there twice
    scores, names = hvd.gather_for_metrics((SCORES[ids], torch.tensor(ids)), ids)
    assert names.tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(scores, SCORES[:5])
    assert hvd.gather_for_metrics({"x": torch.zeros(0, 2)}, [])["x"].shape == (0, 2)
    assert hvd.gather_for_metrics([] if rank == 1 else torch.tensor([rank]), [rank][: rank != 1]).tolist() == [0, 2]
    with pytest.raises(ValueError, match="values must have one row for each of 3 ids, got 2 rows on rank 2"):
        hvd.gather_for_metrics(SCORES[:2] if rank == 2 else SCORES[ids], ids)


@on_ranks(2)
def test_rank_0_is_first(tmp_path):
    file = tmp_path / "data"
    with hvd.rank0_first():
        exists = file.exists()
        file.write_text("")
    assert exists == (hvd.rank() == 1)
    with pytest.raises(RuntimeError if hvd.rank() else OSError, match="no space"), hvd.rank0_first():
        raise OSError("no space")


def rank_0_is_slow():
    with hvd.rank0_first():
        if hvd.rank() == 0:
            time.sleep(5)


@pytest.mark.heavy
def test_rank_0_may_take_longer_than_other_operations(pool):
    settings = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "2", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"}
    pool(2, **settings).run(rank_0_is_slow)


def test_sums_are_exact_and_special_values_stay():
    metric, other = hvd.Metric(), hvd.Metric()
    metric.update([1e300, 0.1])
    other.update([-1e300, 5e-324], [1, 1])
    metric.merge(other)
    assert metric._result() == 0.1 / 4
    metric.update(3.0, 4)
    assert metric._result() == 12.1 / 8
    metric.update(math.inf)
    assert metric._result() == math.inf
    metric.update(-math.inf)
    assert math.isnan(metric._result())
    with pytest.raises(ValueError, match="must have the same number of entries, got 2 and 1"):
        hvd.Metric("accuracy").update([1, 2], [1])
    for wrong in ([0.7], [[0.7]], [[[1, 2]]]):
        with pytest.raises(ValueError, match="predictions must be classes, or scores of shape"):
            hvd.Metric("accuracy").update(torch.tensor(wrong), [1])
    with pytest.raises(ValueError, match=r"kind must be one of 'mean', .* got 'auc'"):
        hvd.Metric("auc")
