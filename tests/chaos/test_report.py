"""The report on faults at the end of a job."""

from horovod.chaos import Event, Kind
from horovod.chaos.report import Outcome, lines, percentile


def test_percentiles():
    assert percentile([3.0], 0.99) == 3.0
    values = [float(n) for n in range(1, 101)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1.0)) == (50.0, 99.0, 100.0)
    assert percentile([2.0, 1.0], 0.5) == 1.0


def test_the_report():
    kill, stop = Event(Kind.KILL, rank=1), Event(Kind.STOP, rank=1, lasts=3.0)
    assert lines([]) == ["chaos: no event"]
    assert lines([Outcome(stop, 9.0)]) == ["chaos: 1 event (1 stop), 0 detected, 0 recovered from"]
    made = [Outcome(kill, 1.0, 1.1, 1.25), Outcome(kill, 5.0, 5.2, 5.5), Outcome(stop, 9.0)]
    told = [
        "chaos: 3 events (2 kill, 1 stop), 2 detected, 2 recovered from",
        "chaos: 1 step done again",
        "chaos: detected after p50 0.100 s, p99 0.200 s, at most 0.200 s",
        "chaos: recovered after p50 0.250 s, p99 0.500 s, at most 0.500 s",
    ]
    assert lines(made, 1) == told
    assert lines(made) == [told[0], *told[2:]], "nobody knows"
    assert lines(made, 0)[1] == "chaos: 0 steps done again"
