"""Warnings of rank 0 when it compares the ranks' observations of training."""

import math

import numpy
import pytest

from horovod.common.telemetry.training import Comparison, NoiseScale
from horovod.common.training_loop.observations import Training


def compare(about, *notes, kind="opt", step=2, comparison=None):
    """Return the warnings for these messages, one for each rank, in order of arrival."""
    comparison = comparison or Comparison()
    ranks = sorted(rank for rank, _ in notes)
    lines = [
        comparison.add(rank, {"about": about, "of": kind, "step": step, "ranks": ranks, "remedy": "do this", **note})
        for rank, note in notes
    ]
    assert not any(lines[:-1])
    return lines[-1]


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
def test_equal_parameters(values):
    assert compare("weights", *weights(*values)) == ""


def test_parameter_missing_on_one_rank():
    notes = [*weights([1.0]), (1, {"values": {"same": [1.0, 2.0], "v": [1.0]}})]
    assert "parameter 'w' differs" in compare("weights", *notes)


def test_each_mistake_is_reported_once():
    comparison = Comparison()
    assert compare("weights", *weights([1.0], [2.0]), comparison=comparison)
    assert not compare("weights", *weights([1.0], [2.0]), comparison=comparison, kind="another", step=20)
    same = [(0, {"digest": "a"}), (1, {"digest": "a"})]
    assert compare("gradients", *same, comparison=comparison)
    assert not compare("batches", (0, {"digests": ["a"]}), (1, {"digests": ["a"]}), comparison=comparison)


def test_equal_samples_on_ranks():
    assert compare("gradients", (0, {"digest": "a"}), (1, {"digest": "b"})) == ""
    text = compare("gradients", *((rank, {"digest": "a"}) for rank in range(3)))
    assert text.startswith("ranks 0-2 computed the same gradients in the first step: do they train on the same samples")
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
    text = compare("plain weights", *plain(1.0, 2.0, averaged=(0, 1), beside=True), kind="Adam", step=100)
    assert text.startswith("an optimizer (Adam) is not distributed, though others of this job are, so its gradients")
    assert "after its step 100 parameter 'w' differs between rank 0 and rank 1. If" in text


def test_averaging_is_detected():
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


# The gradient noise scale of synthetic gradients whose true noise scale is known.


def sampled(rng, ranks, steps, true=6.0, size=200):
    """Return the estimate for random gradients with |G|^2 = 1 and a covariance, not isotropic, with this trace."""
    scale, signal = NoiseScale(), numpy.zeros(size)
    signal[0] = 1.0
    spread = numpy.linspace(0.2, 1.8, size)
    spread *= math.sqrt(true / (spread**2).sum())
    for _ in range(steps):
        local = signal + spread * rng.standard_normal((ranks, size))
        scale.add([float(g @ g) for g in local], float(local.mean(0) @ local.mean(0)), 64)
    return scale.estimate()


@pytest.mark.parametrize(("ranks", "steps"), [(2, 60), (8, 40)])
def test_the_interval_contains_the_true_scale_in_95_percent_of_runs(ranks, steps):
    rng = numpy.random.default_rng(1)
    runs = [sampled(rng, ranks, steps) for _ in range(200)]
    known = [run for run in runs if run]
    assert len(known) == len(runs)
    assert 0.9 <= sum(run["low"] <= 6.0 <= run["high"] for run in known) / len(known) <= 0.99
    assert numpy.mean([run["workers"] for run in known]) == pytest.approx(6.0, rel=0.05)
    assert (known[0]["samples"], known[0]["batch"]) == (steps, 64)
    assert known[0]["examples"] == pytest.approx(64 * known[0]["workers"])


def test_uncertain_estimates_are_withheld():
    rng = numpy.random.default_rng(2)
    assert sampled(rng, 8, 9) is None
    assert all(sampled(rng, 2, 12, true=400.0) is None for _ in range(20))  # the signal is lost in the noise
    assert NoiseScale().estimate() is None
    same = NoiseScale()
    for _ in range(20):
        same.add([1.0, 1.0], 1.0)  # equal gradients have no noise
    assert same.estimate() is None


def test_overflows_are_ignored():
    scale = NoiseScale()
    for number in range(30):
        scale.add([4.0 + number % 3, 4.0], 2.5)
        scale.add([math.inf, 4.0], math.nan)
    assert scale.estimate()["samples"] == 30


def test_samples_of_all_ranks_are_combined_once_they_have_arrived():
    comparison = Comparison()
    for step in range(16, 400, 16):
        for rank, local in ((1, 5.0 + step % 3), (0, 4.0)):
            note = {"about": "noise", "of": "a", "step": step, "ranks": [0, 1], "averaged": 3.0, "batch": None}
            assert comparison.add(rank, {**note, "local": local}) == ""
    found = comparison.noise["a"].estimate()
    assert found["samples"] == 24
    assert found["low"] < found["workers"] < found["high"]
    # A signal of 2 * 3 - 5, and noise of (5 - 3) * 2.
    assert found["workers"] == pytest.approx(4.0, rel=0.01)
