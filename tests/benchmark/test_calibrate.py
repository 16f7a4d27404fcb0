"""Conversion of measured times to sizes. Pure, with made-up times."""

from __future__ import annotations

import pytest

from horovod import _core
from horovod.benchmark import calibrate
from horovod.benchmark.calibrate import TURNS, Sweep, Times, better, candidate, threshold

KIB = 1 << 10
UP_TO = Sweep("doubling_bytes", (0, 1 << 40), tuple(("allreduce", n * KIB, True) for n in (4, 8, 16, 32, 64)))
FROM = Sweep("stream_bytes", (1 << 40, 0), UP_TO.cases, above=True)


def steady(first: list[float], second: list[float]) -> Times:
    """Return noise-free times of the first and the second value, by case."""
    return {(v, i): [seconds] * TURNS for v, row in enumerate((first, second)) for i, seconds in enumerate(row)}


def test_a_better_candidate_needs_a_margin_and_most_turns() -> None:
    assert better([0.9] * 6, [1.0] * 6)
    assert not better([0.98] * 6, [1.0] * 6)
    assert better([0.9] * 5 + [5.0], [1.0] * 6)
    assert not better([0.5] * 4 + [1.1] * 2, [1.0] * 6)


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ([1.0] * 5, 16 * KIB),  # no difference: the default
        ([0.5, 0.5, 0.5, 2.0, 2.0], 16 * KIB),
        ([0.5, 0.5, 0.5, 0.5, 2.0], 32 * KIB),
        ([0.5, 0.5, 0.5, 0.99, 0.5], 16 * KIB),  # sizes beyond one without a winner are ignored
        ([0.5, 0.5, 2.0, 2.0, 2.0], 16 * KIB - 1),
        ([2.0, 2.0, 2.0, 2.0, 2.0], 4 * KIB - 1),
        ([2.0, 0.5, 0.5, 2.0, 2.0], 16 * KIB),
    ],
)
def test_threshold_up_to_a_size(second: list[float], expected: int) -> None:
    assert threshold(UP_TO, steady([1.0] * 5, second), 16 * KIB) == expected


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ([1.0] * 5, 16 * KIB),
        ([2.0, 2.0, 0.5, 0.5, 0.5], 16 * KIB),
        ([2.0, 0.5, 0.5, 0.5, 0.5], 8 * KIB),
        ([0.5] * 5, 4 * KIB),
        ([2.0, 2.0, 2.0, 0.5, 0.5], 16 * KIB + 1),
        ([2.0] * 5, 64 * KIB + 1),
    ],
)
def test_threshold_from_a_size(second: list[float], expected: int) -> None:
    assert threshold(FROM, steady([1.0] * 5, second), 16 * KIB) == expected


def test_a_candidate_must_win_once_and_never_lose() -> None:
    sweep = Sweep("chunk_bytes", (64, 128, 256), (("allreduce", 1 << 20, True), ("allreduce", 1 << 22, True)))

    def chosen(small: tuple[float, float], large: tuple[float, float]) -> int:
        rows = (small, (1.0, 1.0), large)
        times = {(v, i): [seconds] * TURNS for v, row in enumerate(rows) for i, seconds in enumerate(row)}
        return candidate(sweep, times, 128)

    assert chosen((1.0, 1.0), (1.0, 1.0)) == 128
    assert chosen((0.8, 0.8), (0.8, 1.0)) == 64
    assert chosen((0.5, 1.1), (1.0, 0.9)) == 256
    assert chosen((0.5, 1.1), (1.1, 0.9)) == 128


@pytest.mark.parametrize("node_of", [[0, 0], [0, 0, 1, 1], list(range(17))])
def test_every_sweep_has_a_valid_size_and_brackets_its_default(node_of: list[int]) -> None:
    defaults = _core.tuning()
    found = calibrate.sweeps(node_of)
    assert found
    for sweep in found:
        assert sweep.name in defaults
        for value in sweep.values:
            assert _core.tuning(f"{sweep.name}={value}")[sweep.name] == value
        if len(sweep.values) > 2:
            assert defaults[sweep.name] in sweep.values
        else:
            assert sweep.cases[0][1] <= defaults[sweep.name] <= sweep.cases[-1][1]
