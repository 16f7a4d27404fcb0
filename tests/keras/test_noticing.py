"""Warnings about optimizers in ``fit`` that average nothing."""

from types import SimpleNamespace

import pytest

from horovod._keras import checks
from horovod._keras.callbacks import BroadcastGlobalVariables
from horovod.common.training_loop.observations import training


@pytest.fixture
def traffic():
    """Replace the count of bytes in this rank's operations by the value of a list."""
    had = [0]
    training.open(lambda note: None, lambda: had[0])
    yield had
    training.close()


def model(optimizer):
    return SimpleNamespace(optimizer=optimizer, trainable_variables=[SimpleNamespace(shape=(30, 4))])


def batches(data, count=2):
    for _ in range(count):
        checks.after_batch(data)


@pytest.mark.parametrize("optimizer", [SimpleNamespace(), SimpleNamespace(inner_optimizer=SimpleNamespace())])
def test_a_plain_optimizer(traffic, optimizer):
    batches(model(optimizer))
    assert training.nothing_averaged()
    assert "DistributedOptimizer" in training.remedy
    traffic[0] = 240  # the program has averaged by itself
    assert not training.nothing_averaged()


@pytest.mark.parametrize(
    "optimizer",
    [
        None,
        SimpleNamespace(_hvd=None),
        SimpleNamespace(inner_optimizer=SimpleNamespace(_hvd=1)),
        SimpleNamespace(_hvd=1),
    ],
)
def test_other_optimizers(traffic, optimizer):
    batches(model(optimizer))
    assert training.plain_steps == 0


def test_the_callback_notes_batches(traffic):
    callback = BroadcastGlobalVariables(0)
    callback.model = model(SimpleNamespace())
    callback.broadcast_done = True
    callback._hvd_frontend = None
    for batch in range(3):
        callback.on_train_batch_end(batch)
    assert training.plain_steps == 3


def test_steps_without_a_job_are_not_counted():
    training.close()
    before = training.plain_steps
    batches(model(SimpleNamespace()))
    assert training.plain_steps == before
