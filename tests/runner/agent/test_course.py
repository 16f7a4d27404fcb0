"""Which processes of a host get which signal, and when nothing is left to do."""

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
