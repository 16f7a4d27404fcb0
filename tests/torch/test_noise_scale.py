"""The gradient noise scale of a model whose gradients are known exactly."""

import time
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import horovod.torch as hvd
from horovod.torch import monitoring
from horovod.torch.reducer import submissions

SIZE, ROWS, SPREAD = 60, 4, 0.5
TRUE = SIZE * SPREAD**2 / ROWS  # the mean of the rows has a squared norm of 1


def train(steps, buckets, again=False, wait=True, **options):
    """Train with gradients that equal the mean of a batch's rows; return the noise scale that rank 0 knows."""
    hvd.init()
    monitoring.batches.__init__()  # as in a new process
    interval, submissions._NOISE_INTERVAL = submissions._NOISE_INTERVAL, 4
    cost, submissions._NOISE_COST = submissions._NOISE_COST, 1.0
    generator = torch.Generator().manual_seed(hvd.rank())
    rows = SIZE**-0.5 + SPREAD * torch.randn(steps * ROWS, SIZE, generator=generator)
    net = torch.nn.ParameterList([torch.zeros(SIZE // 2), torch.zeros(SIZE // 2)])
    plain = torch.optim.SGD(net.parameters(), lr=1e-3)
    optimizer = hvd.DistributedOptimizer(plain, net.named_parameters(), gradient_as_bucket_view=buckets, **options)
    for (batch,) in DataLoader(TensorDataset(rows), batch_size=ROWS):
        optimizer.zero_grad()
        for _ in range(1 + again):
            sum(part @ p for part, p in zip(batch.chunk(2, 1), net, strict=True)).mean().backward()
        optimizer.step()
    submissions._NOISE_INTERVAL, submissions._NOISE_COST = interval, cost
    deadline = time.monotonic() + 20
    while hvd.rank() == 0 and wait and hvd.stats()["noise_scale"] is None and time.monotonic() < deadline:
        time.sleep(0.01)  # messages of the other ranks are on their way
    hvd.barrier()
    found = hvd.stats()["noise_scale"]
    sentence = hvd.stats()["job"]["sentence"] if hvd.rank() == 0 else ""
    hvd.shutdown()
    return found, sentence


@pytest.mark.parametrize("buckets", [True, False])
def test_the_estimate_is_correct(pool, buckets):
    (found, sentence), *rest = pool(3, initialized=False).run(train, 240, buckets)
    assert found["low"] < TRUE < found["high"]
    assert found["workers"] == pytest.approx(TRUE, rel=0.3)
    assert (found["batch"], found["samples"] > 40) == (ROWS, True)
    assert f"batch {ROWS} per worker: more workers help up to about {found['workers']:.0f}" in sentence
    assert [other for other, _ in rest] == [None, None]


@pytest.mark.parametrize("options", [{"op": hvd.Sum}, {"backward_passes_per_step": 2}, {}])
def test_noise_is_not_measured_outside_the_formulas_scope(pool, options):
    again = {"again": "op" not in options}
    found = pool(2, initialized=False).run(train, 60, True, wait=False, **options, **again)
    assert [scale for scale, _ in found] == [None, None]


def test_sampling_slows_down_until_it_is_cheap(monkeypatch):
    monkeypatch.setattr(submissions, "_NOISE_COST", 0.0)
    sampler, state, sampled = submissions.NoiseSampler(), SimpleNamespace(norms=None, can_measure_noise=True), []
    for step in range(1, 300):
        norms = state.norms = submissions.Norms()
        norms.add(torch.ones(3))
        norms.reduced()
        sampler.after_step(state, "a", hvd.global_process_set, step)
        sampled += [step] if state.norms is None else []
    assert sampled == [16, 32, 64, 128, 256]
    assert norms.squares().tolist() == [pytest.approx(3.0)] * 2
    norms.add(torch.ones(3).to_sparse())
    assert not norms.complete
