"""Which part of a failed step was completed."""

from types import SimpleNamespace

import pytest
import torch

from horovod.common.exceptions import HorovodInternalError
from horovod.torch.elastic import taken_steps
from horovod.torch.elastic.taken_steps import StepByStep


@pytest.mark.parametrize(("device", "expected"), [("cpu", True), ("meta", False)])
def test_device_work_may_have_changed_the_previous_step(monkeypatch, device, expected):
    reducer = SimpleNamespace(options=SimpleNamespace(passes=1), reductions=0, in_a_step=False)
    monkeypatch.setattr(taken_steps, "_reducer", lambda _: reducer)
    monkeypatch.setattr(taken_steps, "_within", lambda *_: True)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2, device=device))], lr=0.1)
    steps = taken_steps.Steps()
    steps.watch([optimizer])
    assert steps.before_step(HorovodInternalError("rank 1 was lost")) is expected
    assert steps.can_hand_over() is expected


def test_several_optimizers_make_one_step():
    both = [torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1) for _ in "12"]
    steps = taken_steps.Steps()
    steps.watch(both)
    for one in (*both, *both, both[0]):
        one.step()
    assert (steps.completed, steps.rounds) == (5, 2)


# When a program may continue with its current state after a failure.
#
# Programs are strings with one letter for each action between two steps; the tests say after which failed reductions
# training can continue.

# c: counts a step; C: counts something else, less often; r: reduces gradients; m: changes parameters; s:
# takes a step
USUAL = "rsc"
GO_ON = ("usual", "two reductions", "moved for a second pass")
PROGRAMS = {
    "usual": USUAL,
    "several steps to a unit": "rsrsc",
    "the first of two steps is counted": "rscrs",
    "counted for commits only": "rsrsrsc",
    "counted before": "crs",
    "two reductions": "rrsc",
    "moved for a second pass": "rmrmsc",
    "moved before the only pass": "mrmsc",
    "clipped after the step": "rscm",
}


def complete(program: str, turns: int = 3) -> list[list[bool]]:
    """Return for each iteration whether a failure in each of its reductions leaves the state consistent."""
    state, count, touched, found = StepByStep(), 0, 0, []
    state.go_on(count, touched)
    for _ in range(turns):
        found.append([])
        for action in program:
            if action == "r":
                found[-1].append(state.is_between(count, touched))
            count += action == "c"
            touched += action in "rm"
            if action == "s":
                state.stepped(count, touched)
    return found


def test_programs_that_count_each_step_continue_without_a_commit():
    # By the second iteration it has not yet shown that it counts each step.
    assert complete(USUAL, 4) == [[True], [False], [True], [True]]
    for name in ("two reductions", "moved for a second pass"):
        assert complete(PROGRAMS[name], 4) == [[True, False], [False, False], [True, False], [True, False]]


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in GO_ON])
def test_other_programs_roll_back_to_their_commit(name):
    first, *rest = complete(PROGRAMS[name], 5)
    assert not any(any(turn) for turn in rest)
    assert not any(first[1:]), "nothing has been done before the first one"


def test_repeated_calls_continue():
    state = StepByStep()
    for call in range(2):
        state.go_on(2 * call, 0)
        assert state.is_between(2 * call, 0), "nothing has been done"
        assert not state.is_between(2 * call + 1, 0)
        for step in (2 * call, 2 * call + 1):
            state.stepped(step, 0)
            assert state.is_between(step + 1, 0) == (step > 0)
            assert not state.is_between(step, 0)
