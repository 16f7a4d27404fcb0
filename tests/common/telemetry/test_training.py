"""Warnings of rank 0 when it compares the ranks' observations of training."""

import pytest

from horovod.common.telemetry.training import Comparison
from horovod.common.training import Training


def compare(about, *notes, of="opt", step=2, comparison=None):
    """Return the warnings for these messages, one for each rank, in order of arrival."""
    comparison = comparison or Comparison()
    ranks = sorted(rank for rank, _ in notes)
    said = [
        comparison.add(rank, {"about": about, "of": of, "step": step, "ranks": ranks, "remedy": "do this", **note})
        for rank, note in notes
    ]
    assert not any(said[:-1])
    return said[-1]


def weights(*values, name="w"):
    return [(rank, {"values": {"same": [1.0, 2.0], name: value}}) for rank, value in enumerate(values)]


def test_parameters_that_differ():
    text = compare("weights", *weights([1.0, 0.0], [1.0, 0.0], [0.5, 0.0], [0.5, 0.0]))
    assert text.startswith("after step 2 parameter 'w' differs between rank 0 and ranks 2-3: ")
    assert text.endswith("do this")


@pytest.mark.parametrize(
    "values",
    [
        ([1.0, -3.0], [1.0, -3.0]),
        ([0.0, 0.0], [0.0, 0.0]),
        ([1.0, -3.0], [1.0 + 1e-7, -3.0]),  # a rounding difference
        ([float("nan"), 1.0], [float("nan"), 1.0]),
        ([float("inf"), 1.0], [float("inf"), 1.0]),
    ],
)
def test_parameters_that_do_not_differ(values):
    assert compare("weights", *weights(*values)) == ""


def test_a_parameter_that_one_rank_lacks():
    notes = [*weights([1.0]), (1, {"values": {"same": [1.0, 2.0], "v": [1.0]}})]
    assert "parameter 'w' differs" in compare("weights", *notes)


def test_a_mistake_is_told_once():
    comparison = Comparison()
    assert compare("weights", *weights([1.0], [2.0]), comparison=comparison)
    assert not compare("weights", *weights([1.0], [2.0]), comparison=comparison, of="another", step=20)
    same = [(0, {"digest": "a"}), (1, {"digest": "a"})]
    assert compare("gradients", *same, comparison=comparison)
    assert not compare("batches", (0, {"digests": ["a"]}), (1, {"digests": ["a"]}), comparison=comparison)


def test_the_same_samples():
    assert compare("gradients", (0, {"digest": "a"}), (1, {"digest": "b"})) == ""
    text = compare("gradients", *((rank, {"digest": "a"}) for rank in range(3)))
    assert text.startswith(
        "ranks 0-2 computed the same gradients in the first step: do they train on the same samples?"
    )
    assert compare("batches", (0, {"digests": ["a", "b"]}), (1, {"digests": ["a", "c"]})) == ""
    text = compare("batches", (0, {"digests": ["a", "b"]}), (1, {"digests": ["a", "b"]}))
    assert text.startswith("the data loaders of ranks 0-1 gave the same first batches: ")


def test_different_epochs():
    text = compare(
        "epochs", (0, {"epochs": 0, "batches": 0}), (1, {"epochs": 1, "batches": 9}), (2, {"epochs": 1, "batches": 8})
    )
    assert text.startswith("ranks 1-2 finished epoch 1 after 8 or 9 batches, and rank 0 has more: ")
    assert compare("epochs", (0, {"epochs": 1, "batches": 9}), (1, {"epochs": 1, "batches": 9})) == ""


def plain(*values, averaged=(), beside=False):
    return [
        (rank, {"values": {"w": [value]}, "nothing_averaged": rank not in averaged, "beside": beside})
        for rank, value in enumerate(values)
    ]


def test_plain_optimizers():
    text = compare("plain weights", *plain(1.0, 2.0), step=100)
    assert text.startswith("after step 100 no gradient has been averaged in this job, and parameter 'w' differs")
    assert compare("plain weights", *plain(1.0, 1.0)) == ""
    assert compare("plain weights", *plain(1.0, 2.0, averaged=(1,))) == ""
    assert compare("plain weights", *plain(1.0, 1.0, averaged=(0, 1), beside=True)) == ""
    text = compare("plain weights", *plain(1.0, 2.0, averaged=(0, 1), beside=True), of="Adam", step=100)
    assert text.startswith("an optimizer (Adam) is not distributed, though others of this job are, so its gradients")
    assert "after its step 100 parameter 'w' differs between rank 0 and rank 1. If" in text


def test_whether_anything_was_averaged():
    traffic = 0
    training = Training()
    assert not training.watched
    training.open(lambda note: None, lambda: traffic)
    assert not training.nothing_averaged()
    traffic = 1000  # a broadcast of parameters
    assert training.plain_step(lambda: 400, "wrap it") == 1
    assert not training.nothing_averaged(), "it may have averaged before its only step"
    assert training.plain_step(lambda: 500, "wrap it") == 2
    traffic += 499  # metrics of the epoch
    assert training.nothing_averaged()
    traffic += 1
    assert not training.nothing_averaged()
    training.close()
    training.open(lambda note: None, lambda: 0)
    training.plain_step(lambda: 1, "")
    training.plain_step(lambda: 1, "")
    training.steps = 1  # there is also a distributed optimizer
    assert not training.nothing_averaged()
