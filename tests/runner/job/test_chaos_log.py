"""Reported effects of injected faults, as the launcher sees them."""

from horovod.chaos import plan
from horovod.runner.job.chaos_log import ChaosLog


def test_events_from_report_to_next_epoch():
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


def test_network_faults_are_logged():
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


def test_planned_events_that_did_not_happen_are_named():
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
