"""The search finds what is faster, and never ends with what is slower, whatever the noise."""

import math
import random

import pytest

from horovod.common.autotune.search import Parameter, Progress, Sample, search

INITIAL = {"a": 16 << 20, "b": 4 << 20}
PARAMETERS = [Parameter("a", 1 << 16, 16 << 20, 6 << 20), Parameter("b", 1 << 16, 64 << 20)]


def searched(cost, noise, drift, seed, candidates=20):
    """Run a search over a simulated job, and return its progress and everything that it measured.

    ``cost`` returns the step time of some values, ``noise`` is the mean delay of a step, and ``drift`` the standard
    deviation of the machine's speed between two samples, both as fractions of the step.
    """
    chance = random.Random(seed)
    progress = Progress(dict(INITIAL))
    measuring = search(progress, PARAMETERS, candidates)
    measured = []
    values = next(measuring)
    while True:
        measured.append(values)
        level = cost(values) * (1 + drift * abs(chance.gauss(0, 1)))
        times = [level * (1 + noise * abs(chance.gauss(0, 1)) + 5 * (chance.random() < 0.05)) for _ in range(10)]
        try:
            values = measuring.send(Sample.of(times))
        except StopIteration:
            return progress, measured


def bowl(values):
    return 0.05 * (1 + 0.1 * abs(math.log2(values["a"] / (1 << 21))) + 0.02 * abs(math.log2(values["b"] / (1 << 20))))


@pytest.mark.parametrize(("noise", "drift"), [(0.01, 0), (0.05, 0.02), (0.1, 0.1), (0.5, 0.3)])
def test_search_never_ends_slower_than_it_started(noise, drift):
    for seed in range(100):
        progress, measured = searched(bowl, noise, drift, seed)
        assert bowl(progress.best) <= bowl(INITIAL)
        assert measured[0] == INITIAL
        assert progress.tried <= 20
        assert (progress.gain > 0) == (progress.best != INITIAL)


def test_a_better_maximum_is_kept():
    def peak(values):  # every change makes a step 2% slower
        return 0.05 * (1 if values == INITIAL else 1.02)

    for seed in range(100):
        assert searched(peak, 0.03, 0.02, seed)[0].best == INITIAL


def test_search_finds_good_values_with_little_noise():
    progress, measured = searched(bowl, 0.005, 0, 1)
    assert bowl(progress.best) < 0.05 * 1.1
    assert progress.gain == pytest.approx(1 - bowl(progress.best) / bowl(INITIAL), abs=0.02)
    assert progress.seconds == pytest.approx(bowl(progress.best), rel=0.02)
    # Candidates that are slower cost two samples, those that are accepted four.
    assert len(measured) < 4 * progress.tried


def test_the_number_of_candidates_is_limited():
    progress, measured = searched(bowl, 0, 0, 1, candidates=1)
    assert progress.tried == 1
    assert len({tuple(values.values()) for values in measured}) == 2
    assert progress.best == {**INITIAL, "a": 6 << 20}


def test_a_sample_is_a_median_with_its_error():
    sample = Sample.of([1.0, 1.1, 0.9, 1.0, 50.0])
    assert sample.seconds == 1.0
    assert 0 < sample.error < 0.2
    assert Sample.of([3.0]) == (3.0, 0.0)
