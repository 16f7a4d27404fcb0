"""Which processes of a host get which signal, and when nothing is left to do."""

import signal

import pytest

from horovod.runner.agent.state import GIVE_UP, LINGER, TERM_GRACE, HostPhase, HostState, Step, ranks_of


def never() -> list[int]:
    raise AssertionError("walking the process tree costs time")


def running() -> HostState:
    state = HostState()
    assert state.start()
    assert state.advance(0.0, True, never) == Step()
    assert not state.changes
    return state


def test_a_job_that_ends_by_itself():
    state = running()
    assert state.advance(1.0, False, list) == Step(kill=[], survivors=[])
    assert state.phase is HostPhase.FINISHED
    assert state.advance(2.0, False, never) == Step()


def test_helpers_may_exit_by_themselves_briefly():
    state = running()
    assert (state.advance(1.0, False, lambda: [7]), state.changes) == (Step(), True)
    steps = [state.advance(1.0 + after, False, lambda: [7]) for after in (LINGER, LINGER, LINGER + TERM_GRACE)]
    assert steps == [Step(), Step(term=[7]), Step(kill=[7])]


def test_sigterm_once_then_sigkill_until_dead():
    state = running()
    state.stop(4.0, 10.0)
    assert state.advance(10.0, True, lambda: [7, 8]) == Step(term=[7, 8])
    assert state.advance(11.0, True, lambda: [7, 9]) == Step(term=[9]), "9 was started meanwhile"
    assert state.advance(14.0, True, lambda: [7]) == Step(kill=[7])
    assert state.advance(15.0, True, lambda: [7]) == Step(kill=[7])
    assert state.advance(16.0, False, list).survivors == []


def interrupted(first: int = signal.SIGINT) -> HostState:
    """Return a job with a rank, 7, and its data loader, 8, stopped at 10 s with 20 s for the rank."""
    state = running()
    state.stop(20.0, 10.0, first)
    assert state.stopping
    assert state.advance(10.0, True, lambda: [7, 8]) == Step(first=first)
    state.confirm_signalled([7])
    return state


def test_ranks_end_before_their_children():
    state = interrupted()
    assert state.advance(29.0, True, lambda: [7, 8]) == Step()
    assert state.advance(29.0, False, lambda: [8]) == Step(), "8 may end by itself"
    assert state.advance(29.0 + LINGER, False, lambda: [8]) == Step(term=[8])
    assert state.advance(29.0 + LINGER + TERM_GRACE, False, lambda: [8]) == Step(kill=[8])


def test_ranks_that_do_not_end_within_the_grace():
    state = interrupted()
    assert state.advance(29.9, True, lambda: [7, 8]) == Step()
    assert state.advance(30.0, True, lambda: [7, 8]) == Step(term=[7, 8])
    assert state.advance(30.0 + TERM_GRACE, True, lambda: [7]) == Step(kill=[7])
    state = interrupted(signal.SIGTERM)
    assert state.advance(30.0, True, lambda: [7, 8]) == Step(term=[8]), "7 has had it"


def test_another_stop_ends_the_grace_of_ranks():
    state = interrupted()
    state.stop(0.0, 11.0)
    assert state.advance(11.0, True, lambda: [7, 8]) == Step(kill=[7, 8])
    state = interrupted()
    state.stop(4.0, 11.0)
    assert state.advance(11.0, True, lambda: [7, 8]) == Step(term=[7, 8])
    state = running()
    state.stop(4.0, 10.0)
    state.stop(20.0, 10.0, signal.SIGINT)
    assert state.advance(10.0, True, lambda: [7]) == Step(term=[7]), "it stops already"


def test_another_stop_only_shortens_the_grace():
    for grace, at in ((9.0, 14.0), (0.0, 10.0)):
        state = running()
        state.stop(4.0, 10.0)
        state.stop(grace, 10.0)
        assert state.advance(at, True, lambda: [7]) == Step(kill=[7])
        assert state.advance(at + GIVE_UP, True, lambda: [7]) == Step(kill=[7], survivors=[7]), "not even by SIGKILL"


def test_orders_are_sent_once_and_an_early_stop_ends_everything():
    state = HostState()
    assert state.advance(1.0, False, never) == Step()
    state.stop(4.0, 2.0)
    assert state.advance(2.0, False, never) == Step(kill=[], survivors=[])
    state = running()
    assert not state.start()


def test_a_disconnected_launcher_can_still_take_the_last_reports():
    state = running()
    state.advance(1.0, False, list)
    assert not state.gives_up(2.0)
    assert not state.gives_up(2.0 + GIVE_UP - 0.1)
    assert state.gives_up(2.0 + GIVE_UP)


# 10 and 20 are workers of agent 1. 10 is a shell around rank 11, which has two data loaders.
PARENTS = {1: 0, 10: 1, 11: 10, 12: 11, 13: 12, 20: 1, 21: 20, 30: 1}


@pytest.mark.parametrize(
    ("called", "expected"),
    [
        pytest.param({11, 20}, {11, 20}, id="nothing around a rank, no helper of it"),
        pytest.param({11}, {11, 20, 21}, id="all of a worker whose rank is not known"),
        pytest.param({1, 7}, {10, 11, 12, 13, 20, 21}, id="numbers of another pid namespace"),
    ],
)
def test_processes_that_are_ranks(called, expected):
    assert set(ranks_of([10, 20], called, PARENTS)) == expected


def test_processes_without_a_worker_ancestor():
    assert ranks_of([], {11}, PARENTS) == []
    assert ranks_of([10], {10}, {10: 11, 11: 12, 12: 11}) == [10], "a table read while processes came and went"
    assert ranks_of([9], {12}, {10: 11, 11: 12, 12: 11}) == []
