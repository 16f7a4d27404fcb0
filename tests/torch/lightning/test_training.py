"""Lightning on two ranks trains as one process does on the batches of both ranks."""

import pathlib

import pytest

pytest.importorskip("lightning.pytorch")

import torch

import horovod.torch as hvd
from horovod.torch.lightning import HorovodStrategy
from tests.torch.lightning import training

pytestmark = pytest.mark.heavy


def test_two_ranks_train_as_one_process_and_resume(pool, tmp_path):
    one, other = pool(2).run(training.train_and_resume, str(tmp_path), timeout=120.0)
    assert not torch.equal(one["begun"], other["begun"])
    for name in ("whole", "first", "resumed"):
        assert torch.equal(one[name], other[name]), name
    assert (one["whole"] - one["begun"]).abs().max() > 0.1
    weights, loss = one["expected"]
    torch.testing.assert_close(one["whole"], weights, rtol=1e-4, atol=1e-5)
    assert torch.equal(one["resumed"], one["whole"]), "with the state of Adam, of the scheduler and the count of epochs"
    assert not torch.equal(one["first"], one["whole"])
    assert one["steps"] == (6, 6)
    assert one["metrics"] == other["metrics"]
    assert one["metrics"]["loss"] == pytest.approx(loss, rel=1e-4)
    assert one["metrics"]["seen"] == pytest.approx(float(training.Y.mean()), rel=1e-5), "of the rows of both"
    assert (one["world"], other["world"]) == ((2, 0, 0, True), (2, 1, 1, False))
    assert (one["files"], other["files"]) == (["1.ckpt", "3.ckpt"], []), "rank 0 writes, and reads"


def _between():
    strategy = HorovodStrategy()
    rank = hvd.rank()
    own = torch.tensor([1.0 + rank], requires_grad=True)
    gathered = strategy.all_gather(own, sync_grads=True)
    (gathered * torch.tensor([[1.0], [10.0]])).sum().backward()
    wrong = []
    for act in (lambda: strategy.reduce(own, reduce_op="median"), lambda: HorovodStrategy(package=torch)):
        with pytest.raises(ValueError) as raised:
            act()
        wrong.append(str(raised.value))
    strategy.barrier("here")
    return {
        "mean": [strategy.reduce(torch.tensor(3 * rank)).item(), strategy.reduce(own).item()],
        "sum": strategy.reduce(own, reduce_op=torch.distributed.ReduceOp.SUM).item(),
        "word": strategy.reduce("word"),
        "gathered": (gathered.tolist(), own.grad.item(), strategy.all_gather(own).requires_grad),
        "told": strategy.broadcast({"rank": rank}, src=1),
        "votes": [strategy.reduce_boolean_decision(vote, every) for vote in (rank == 0, 1) for every in (True, False)],
        "wrong": wrong,
    }  # fmt: skip


def test_collectives_used_by_lightning(pool):
    one, other = pool(2).run(_between)
    assert (one["gathered"][1], other["gathered"][1]) == (2.0, 20.0), "of both ranks' sums"
    for found in (one, other):
        assert found["mean"] == [1.5, 1.5]
        assert (found["sum"], found["word"], found["told"]) == (3.0, "word", {"rank": 1})
        assert found["gathered"][0] == [[1.0], [2.0]]
        assert not found["gathered"][2]
        assert found["votes"] == [False, True, True, True]
        assert found["wrong"][0].startswith("reduce_op must be one of 'mean', 'avg', 'sum'")
        assert "package must be one of the modules lightning.pytorch and pytorch_lightning" in found["wrong"][1]


def _failing(folder):
    messages = []
    with pytest.raises(Exception) as raised:
        training.fit(folder, 1, begin="none.ckpt")
    messages.append(f"{raised.type.__name__}: {raised.value}")
    with pytest.raises(ValueError) as raised:
        training.fit(folder, 1, sync_batchnorm=True)
    messages.append(str(raised.value))
    with pytest.raises(ValueError) as raised:
        training.fit(folder, 1, devices=3)
    messages.append(str(raised.value))
    return messages


def test_invalid_arguments_are_reported_on_all_ranks(pool, tmp_path):
    one, other = pool(2).run(_failing, str(tmp_path))
    assert one[0].startswith("FileNotFoundError: ")
    assert other[0].startswith("RuntimeError: rank 0 cannot read the checkpoint ")
    assert "none.ckpt: FileNotFoundError: " in other[0]
    for text in (one, other):
        assert text[1].startswith("sync_batchnorm must be False, got True, which needs torch.distributed; use horovod")
        assert text[2].startswith("the Trainer's devices must be 1, 'auto' or, for GPUs, as many as")


def _other_name(folder):
    pl = pytest.importorskip("pytorch_lightning")
    module, trainer = training.fit(folder, 1, pl=pl)
    return module.weights(), trainer.world_size


def test_trainer_under_its_other_name(pool, tmp_path):
    (one, size), (other, _) = pool(2).run(_other_name, str(tmp_path), timeout=120.0)
    assert torch.equal(one, other)
    assert size == 2


def _by_hand(folder):
    """Manual optimization with two optimizers, and the loops besides fit."""
    pl, part = training.lightning, training.line_of().__class__

    class ByHand(part):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.norm = torch.nn.BatchNorm1d(4)

        def training_step(self, batch, number):
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                loss = training.mse_loss(self.net(self.norm(batch[0]))[:, 0], batch[1])
                self.manual_backward(loss)
                optimizer.step()

        def validation_step(self, batch, number):
            self.log("rows", float(len(batch[0])), sync_dist=True, reduce_fx="sum")

        def predict_step(self, batch, number):
            return batch[1]

        def configure_optimizers(self):
            return [torch.optim.SGD(self.net.parameters(), 0.05), torch.optim.SGD(self.norm.parameters(), 0.05)]

    module = ByHand()
    trainer = pl.Trainer(strategy=HorovodStrategy(), max_epochs=2, **training.QUIET)
    for _ in range(2):  # the second call creates new optimizers of the same parameters
        trainer.fit(module, training.loader())
        trainer.fit_loop.max_epochs += 2
    rows = trainer.validate(module, training.loader(), verbose=False)[0]["rows"]
    predicted = torch.cat(trainer.predict(module, training.loader()))
    seen = hvd.allgather_object(predicted)
    hvd.check_in_sync(torch.nn.ParameterList(module.parameters()))
    assert not any(hasattr(one, "_hvd") for one in trainer.optimizers)
    return rows, torch.cat(seen), module.weights(), module.begun, pathlib.Path(folder).exists()


def test_optimization_by_hand_and_other_loops(pool, tmp_path):
    one, other = pool(2).run(_by_hand, str(tmp_path), timeout=120.0)
    assert one[0] == other[0] == training.ROWS
    assert sorted(one[1].tolist()) == sorted(training.Y.tolist()), "each row is predicted once"
    assert torch.equal(one[2], other[2])
    assert not torch.equal(one[2], one[3])
