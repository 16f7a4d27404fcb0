"""Deadlines in an elastic job if the launcher itself is stopped."""

from horovod.runner.elastic.actions import SUSPENDED_SECONDS, Standstill


def test_a_loop_that_wakes_much_too_late_was_paused():
    standstill = Standstill(100.0)
    standstill.waits(101.0)
    assert standstill.look(101.5) == 0.0
    standstill.waits(None)
    assert standstill.look(9000.0) == 0.0, "nothing has happened for long"
    standstill.waits(9001.0)
    assert standstill.look(9001.0 + SUSPENDED_SECONDS + 1.0) == SUSPENDED_SECONDS + 2.0
    standstill.waits(0.0)
    assert standstill.look(9007.1) == 0.0, "that is: at once"
