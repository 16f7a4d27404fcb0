"""Stopped workers, and when they have been stopped for too long."""

from horovod.runner.job.roster import StoppedWorkers


def test_who_is_stopped_for_too_long_is_told_once_in_every_timeout():
    stopped = StoppedWorkers(10.0)
    assert stopped.next_time() is None
    stopped.stops(3, 1.0)
    stopped.stops(5, 4.0)
    assert stopped.next_time() == 11.0
    assert stopped.take_late(10.9) == []
    assert stopped.take_late(11.0) == [3]
    assert stopped.take_late(11.1) == []
    assert stopped.next_time() == 14.0
    assert stopped.take_late(21.0) == [3, 5]
