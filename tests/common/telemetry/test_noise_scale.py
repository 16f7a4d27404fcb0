"""The gradient noise scale of synthetic gradients whose true noise scale is known."""

import math

import numpy
import pytest

from horovod.common.telemetry.noise_scale import NoiseScale
from horovod.common.telemetry.training import Comparison


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


def test_there_is_no_estimate_while_it_is_uncertain():
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
