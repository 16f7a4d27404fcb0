"""Profiles from recorded steps."""

from __future__ import annotations

import pytest

from horovod.planner.recorded import RecordedRank, RecordedStep, profile_of

NAMES = [("a", 10, "float32"), ("b", 20, "float32"), ("unused", 5, "float32")]


def rank(*factors: float) -> RecordedRank:
    steps = [RecordedStep(0.1 * f, 0.2 * f, 0.4 * f, 0.1 * f, {0: 0.4 * f, 1: 0.1 * f}) for f in factors]
    return RecordedRank("model", "cpu", 8, NAMES, steps)


def test_gradients_are_in_the_order_of_readiness_and_unused_ones_left_out() -> None:
    found = profile_of([rank(1.0, 1.0, 1.0)])
    assert [(g.name, g.ready) for g in found.gradients] == [("b", 0.1), ("a", 0.4)]
    assert (found.variation.steps, found.variation.ranks) == (0, 0)
    assert found.seconds.step == pytest.approx(0.8)


def test_a_disturbed_step_changes_the_variation_and_not_the_times() -> None:
    found = profile_of([rank(1.0, 1.0, 1.0, 1.0, 3.0)])
    assert (found.seconds.forward, found.seconds.backward) == (0.2, 0.4)
    assert found.seconds.data == pytest.approx(0.14)
    assert found.variation.steps == pytest.approx(0.8 / 1.4)


def test_lasting_differences_between_ranks_are_not_those_between_steps() -> None:
    found = profile_of([rank(1.0, 1.0), rank(3.0, 3.0)])
    assert found.workers == 2
    assert found.seconds.forward == pytest.approx(0.4)
    assert (found.variation.steps, found.variation.ranks) == (0, pytest.approx(0.5))


def test_something_must_have_been_recorded() -> None:
    with pytest.raises(ValueError, match="at least one recorded step on every rank"):
        profile_of([rank(1.0), rank()])
    nothing = RecordedRank("model", "cpu", 8, NAMES, [RecordedStep(0.1, 0.1, 0.1, 0.1, {})])
    with pytest.raises(ValueError, match="no gradient was seen"):
        profile_of([nothing])
