"""Reported effects of injected faults, as the launcher sees them."""

from horovod.chaos import plan
from horovod.runner.job.chaos_log import ChaosLog


def test_from_what_a_rank_says_to_the_epoch_after_it():
    log = ChaosLog()
    assert log.lines() == ["chaos: no event"]
    log.epoch(1, 0.0)
    log.wrote(3, b"training\nchaos: kill rank=3 st", 10.0)
    log.wrote(3, b"ep=20\n", 10.0)
    log.failed(3, 10.1)
    log.epoch(0, 10.1)
    log.epoch(2, 10.3)
    log.wrote(1, b"chaos: steps that are done again: 1", 10.4)
    log.wrote(1, b"2\n", 10.4)
    log.epoch(2, 11.0)
    # One rank is stopped briefly, without effect; another one raises, and the epoch ends before its process
    # does.
    log.wrote(0, b"chaos: stop rank=0 after=3s for=1s\nchaos: slow link=0-1 (not done: there is no rank 1)\n", 12.0)
    log.wrote(1, b"chaos: raise rank=1 step=40\n", 20.0)
    log.epoch(0, 20.2)
    log.failed(1, 20.4)
    log.epoch(4, 20.6)
    log.wrote(1, b"chaos: nonsense\nchaos: steps that are done again: 3\n", 21.0)
    assert log.lines() == [
        "chaos: 3 events (1 kill, 1 stop, 1 raise), 2 detected, 2 recovered from",
        "chaos: 15 steps done again",
        "chaos: detected after p50 0.100 s, p99 0.200 s, at most 0.200 s",
        "chaos: recovered after p50 0.300 s, p99 0.600 s, at most 0.600 s",
    ]


def test_a_stop_that_was_over_when_its_rank_fails():
    log = ChaosLog()
    log.epoch(1, 0.0)
    log.wrote(0, b"chaos: stop rank=0 after=1s for=2s\n", 1.0)
    log.wrote(1, b"chaos: stop rank=1 after=2s for=30s\n", 2.0)
    log.failed(1, 12.0)
    log.wrote(0, b"chaos: exit rank=0 after=20s\n", 20.0)
    log.failed(0, 20.5)
    assert log.lines()[:2] == [
        "chaos: 3 events (2 stop, 1 exit), 2 detected, 0 recovered from",
        "chaos: detected after p50 0.500 s, p99 10.000 s, at most 10.000 s",
    ]


def test_what_is_done_to_networks():
    """Both ends report a slow link, and no rank is lost by it.

    A host is cut off a moment after it has reported so; a worker that returns soon is not lost.
    """
    log = ChaosLog()
    log.epoch(1, 0.0)
    log.wrote(0, b"chaos: slow link=0-1 by=5ms (packets to rank 1)\n", 1.0)
    log.wrote(1, b"chaos: slow link=0-1 by=5ms (the other end, packets to rank 0)\n", 1.0)
    log.wrote(2, b"chaos: cut host=b after=5s for=1s (host b)\n", 5.0)
    log.failed(0, 10.0)
    log.epoch(0, 10.0)
    log.epoch(2, 10.5)
    log.wrote(2, b"chaos: cut host=b after=20s for=30s (host b)\n", 20.0)
    log.epoch(0, 24.5)
    log.epoch(3, 25.0)
    assert log.lines() == [
        "chaos: 3 events (1 slow, 2 cut), 1 detected, 1 recovered from",
        "chaos: detected after p50 4.000 s, p99 4.000 s, at most 4.000 s",
        "chaos: recovered after p50 4.500 s, p99 4.500 s, at most 4.500 s",
    ]


def test_an_epoch_that_only_lets_others_in_is_no_sign_of_a_fault():
    """One rank is killed. Another is told to stop in order, and ends only after the new one is admitted.

    A stopped rank continues before it raises.
    """
    log = ChaosLog()
    log.epoch(1, 0.0, [0, 1, 2])
    log.wrote(1, b"chaos: kill rank=1 step=20\n", 1.0)
    log.epoch(0, 1.1, [0, 1, 2])
    log.epoch(2, 1.3, [0, 2])
    log.wrote(2, b"chaos: preempt rank=1 after=2s\nchaos: cut host=b step=1\n", 2.0)
    log.wrote(0, b"chaos: stop rank=0 after=2s for=2s\n", 2.0)
    log.epoch(0, 4.1, [0, 2])
    log.epoch(3, 4.2, [0, 2, 3])
    log.wrote(0, b"chaos: raise rank=0 after=4s\n", 4.3)
    log.epoch(0, 4.5, [0, 2, 3])
    log.failed(0, 4.6)
    log.epoch(4, 4.8, [2, 3])
    assert log.lines() == [
        "chaos: 5 events (1 kill, 1 preempt, 1 cut, 1 stop, 1 raise), 2 detected, 2 recovered from",
        "chaos: detected after p50 0.100 s, p99 0.200 s, at most 0.200 s",
        "chaos: recovered after p50 0.300 s, p99 0.500 s, at most 0.500 s",
    ]


def test_a_job_that_ends_with_its_last_epoch():
    log = ChaosLog()
    log.epoch(1, 0.0, [0, 1])
    log.wrote(1, b"chaos: cut host=b step=20\n", 1.0)
    log.wrote(0, b"chaos: preempt rank=0 step=30\n", 3.0)
    log.epoch(0, 5.5, [0, 1])
    assert log.lines()[:2] == [
        "chaos: 2 events (1 cut, 1 preempt), 1 detected, 0 recovered from",
        "chaos: detected after p50 4.000 s, p99 4.000 s, at most 4.000 s",
    ]


def test_what_was_planned_and_has_not_happened_is_named():
    planned = plan(
        "kill rank=1 step=5; kill rank=1 step=50; stop rank=7 step=2 for=1s; slow link=0-1 by=5ms; seed=3 mtbf=9s"
    )
    log = ChaosLog(planned.events)
    log.epoch(1, 0.0)
    log.wrote(0, b"chaos: slow link=0-1 by=5ms (packets to rank 1)\n", 1.0)
    log.wrote(1, b"chaos: slow link=0-1 by=5ms (the other end, packets to rank 0)\n", 1.0)
    log.wrote(1, b"chaos: kill rank=1 step=5\n", 2.0)
    assert log.lines()[-2:] == [
        "chaos: has not happened: kill rank=1 step=50",
        "chaos: has not happened: stop rank=7 step=2 for=1s",
    ]
    assert ChaosLog(planned.events).lines()[0] == "chaos: no event"
    assert len(ChaosLog(planned.events).lines()) == 5
