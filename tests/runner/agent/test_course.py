"""Which processes of a host get which signal, and when nothing is left to do."""

import signal

from horovod.runner.agent.course import GIVE_UP, LINGER, TERM_GRACE, Course, Phase, Step


def never() -> list[int]:
    raise AssertionError("walking the process tree costs time")


def running() -> Course:
    course = Course()
    assert course.start()
    assert course.advance(0.0, True, never) == Step()
    assert not course.changes
    return course


def test_a_job_that_ends_by_itself():
    course = running()
    assert course.advance(1.0, False, list) == Step(kill=[], survivors=[])
    assert course.phase is Phase.FINISHED
    assert course.advance(2.0, False, never) == Step()


def test_what_workers_leave_behind_may_end_by_itself_for_a_moment():
    course = running()
    assert course.advance(1.0, False, lambda: [7]) == Step()
    assert course.changes
    assert course.advance(1.0 + LINGER / 2, False, lambda: [7]) == Step()
    assert course.advance(1.0 + LINGER, False, lambda: [7]) == Step()
    assert course.phase is Phase.STOPPING
    assert course.advance(1.0 + LINGER, False, lambda: [7]) == Step(term=[7])
    assert course.advance(1.0 + LINGER + TERM_GRACE, False, lambda: [7]) == Step(kill=[7])


def test_term_once_and_kill_until_it_helps():
    course = running()
    course.stop(4.0, 10.0)
    assert course.advance(10.0, True, lambda: [7, 8]) == Step(term=[7, 8])
    assert course.advance(11.0, True, lambda: [7, 9]) == Step(term=[9]), "9 was started meanwhile"
    assert course.advance(14.0, True, lambda: [7]) == Step(kill=[7])
    assert course.advance(15.0, True, lambda: [7]) == Step(kill=[7])
    assert course.advance(16.0, False, list).survivors == []


def interrupted(first: int = signal.SIGINT) -> Course:
    """Return a job with a rank, 7, and its data loader, 8, stopped at 10 s with 20 s for the rank."""
    course = running()
    course.stop(20.0, 10.0, first)
    assert course.stopping
    assert course.advance(10.0, True, lambda: [7, 8]) == Step(first=first)
    course.told([7])
    return course


def test_ranks_end_before_what_they_have_started():
    course = interrupted()
    assert course.advance(29.0, True, lambda: [7, 8]) == Step()
    assert course.advance(29.0, False, lambda: [8]) == Step(), "8 may end by itself"
    assert course.advance(29.0 + LINGER, False, lambda: [8]) == Step(term=[8])
    assert course.advance(29.0 + LINGER + TERM_GRACE, False, lambda: [8]) == Step(kill=[8])


def test_ranks_that_do_not_end_within_the_grace():
    course = interrupted()
    assert course.advance(29.9, True, lambda: [7, 8]) == Step()
    assert course.advance(30.0, True, lambda: [7, 8]) == Step(term=[7, 8])
    assert course.advance(30.0 + TERM_GRACE, True, lambda: [7]) == Step(kill=[7])
    course = interrupted(signal.SIGTERM)
    assert course.advance(30.0, True, lambda: [7, 8]) == Step(term=[8]), "7 has had it"


def test_another_stop_ends_the_grace_of_ranks():
    course = interrupted()
    course.stop(0.0, 11.0)
    assert course.advance(11.0, True, lambda: [7, 8]) == Step(kill=[7, 8])
    course = interrupted()
    course.stop(4.0, 11.0)
    assert course.advance(11.0, True, lambda: [7, 8]) == Step(term=[7, 8])
    course = running()
    course.stop(4.0, 10.0)
    course.stop(20.0, 10.0, signal.SIGINT)
    assert course.advance(10.0, True, lambda: [7]) == Step(term=[7]), "it stops already"


def test_ranks_that_take_no_signal_are_not_waited_for():
    course = running()
    course.stop(20.0, 10.0, signal.SIGINT)
    assert course.advance(10.0, True, lambda: [7]) == Step(first=signal.SIGINT)
    course.told([])
    assert course.advance(10.0, True, lambda: [7]) == Step()
    assert course.advance(10.0 + LINGER, True, lambda: [7]) == Step(term=[7])


def test_what_the_kernel_cannot_end_is_left():
    course = running()
    course.stop(0.0, 10.0)
    assert course.advance(10.0 + GIVE_UP - 0.1, True, lambda: [7]) == Step(kill=[7])
    assert course.advance(10.0 + GIVE_UP, True, lambda: [7]) == Step(kill=[7], survivors=[7])
    assert course.phase is Phase.FINISHED


def test_another_stop_can_only_make_it_sooner():
    course = running()
    course.stop(4.0, 10.0)
    course.stop(9.0, 10.0)
    assert course.advance(14.0, True, lambda: [7]) == Step(kill=[7])
    course = running()
    course.stop(4.0, 10.0)
    course.stop(0.0, 11.0)
    assert course.advance(11.0, True, lambda: [7]) == Step(kill=[7])


def test_orders_come_once_and_a_stop_before_them_ends_everything():
    course = Course()
    assert course.advance(1.0, False, never) == Step()
    course.stop(4.0, 2.0)
    assert course.advance(2.0, False, never) == Step(kill=[], survivors=[])
    course = running()
    assert not course.start()


def test_a_launcher_that_is_gone_has_some_time_to_take_the_last_reports():
    course = running()
    course.advance(1.0, False, list)
    assert not course.gives_up(2.0)
    assert not course.gives_up(2.0 + GIVE_UP - 0.1)
    assert course.gives_up(2.0 + GIVE_UP)
