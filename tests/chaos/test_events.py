"""The report on faults at the end of a job."""

import pytest

from horovod.chaos import Event, Kind, events
from horovod.chaos.events import Member, Outcome, Ranks, acting, concerns, lines, why_not

# The report on faults at the end of a job.


def test_report_of_outcomes():
    kill, stop = Event(Kind.KILL, rank=1), Event(Kind.STOP, rank=1, lasts=3.0)
    assert lines([]) == ["chaos: no event"]
    assert lines([Outcome(stop, 9.0)]) == ["chaos: 1 event (1 stop), 0 detected, 0 recovered from"]
    outcomes = [Outcome(kill, 1.0, 1.1, 1.25), Outcome(kill, 5.0, 5.2, 5.5), Outcome(stop, 9.0)]
    reports = [
        "chaos: 3 events (2 kill, 1 stop), 2 detected, 2 recovered from",
        "chaos: 1 step done again",
        "chaos: detected after p50 0.100 s, p99 0.200 s, at most 0.200 s",
        "chaos: recovered after p50 0.250 s, p99 0.500 s, at most 0.500 s",
    ]
    assert lines(outcomes, 1) == reports
    assert lines(outcomes) == [reports[0], *reports[2:]], "the cause is unknown"
    assert lines(outcomes, 0)[1] == "chaos: 0 steps done again"


# Selection of the ranks for a fault, and faults that no rank can perform.

MACHINES = [Member("a", "1"), Member("a", "1"), Member("b", "2"), Member("c", "3")]


def ranks_of(event: Event, *members: Member) -> list[int]:
    """Return the ranks that the fault concerns."""
    machines = members or tuple(MACHINES)
    return [rank for rank in range(len(machines)) if concerns(event, Ranks(rank, machines))]


def why(event: Event, *members: Member) -> str:
    return why_not(event, Ranks(0, members or tuple(MACHINES)))


def test_events_that_ranks_execute():
    assert ranks_of(Event(Kind.KILL, rank=2)) == [2]
    assert ranks_of(Event(Kind.KILL, rank=9)) == []
    assert ranks_of(Event(Kind.KILL, pick=0.5)) == [2]


def test_the_first_rank_of_a_host_disconnects_it():
    assert ranks_of(Event(Kind.CUT, host="b")) == [2]
    assert ranks_of(Event(Kind.CUT, host="a", lasts=3.0)) == [0]
    assert [ranks_of(Event(Kind.CUT, pick=pick, lasts=3.0)) for pick in (0.0, 0.4, 0.99)] == [[0], [2], [3]]


def test_both_ends_slow_down_a_link():
    assert ranks_of(Event(Kind.SLOW, link=(3, 1), by=0.1)) == [1, 3]
    # One of the pairs connected by a network: 0-2, 0-3, 1-2, 1-3, 2-3.
    assert ranks_of(Event(Kind.SLOW, pick=0.0, by=0.1)) == [0, 2]
    assert ranks_of(Event(Kind.SLOW, pick=0.9, by=0.1)) == [2, 3]


@pytest.mark.parametrize(
    ("event", "members", "message"),
    [
        (Event(Kind.CUT, host="d"), (), "no rank is on host d"),
        (Event(Kind.CUT, pick=0.5), (), "random faults cut hosts off only where kinds= names it"),
        (
            Event(Kind.CUT, host="localhost"),
            (Member("localhost", "1"), Member("127.0.0.1", "1")),
            "all ranks are on one machine, with no network between them",
        ),
        (Event(Kind.SLOW, link=(0, 4)), (), "there is no rank 4"),
        (Event(Kind.SLOW, link=(1, 0)), (), "ranks 1 and 0 are on one machine, with no network between them"),
        (Event(Kind.SLOW, pick=0.5), MACHINES[:2], "no two ranks have a network between them"),
    ],
)
def test_rank_0_reports_impossible_events(event, members, message):
    assert why(event, *members) == message
    assert ranks_of(event, *members) == [0]
    assert acting(event, Ranks(0, tuple(members or MACHINES))) == ()


def test_cut_command():
    assert events.cut(["eth0", "eth1.5@if3"], 3.0) == (
        "flush set inet horovod_chaos down\n"
        'add element inet horovod_chaos down { "eth0" timeout 3000ms, "eth1.5@if3" timeout 3000ms }\n'
    )
    assert '{ "eth0" }' in events.cut(["eth0"], None)
    with pytest.raises(ValueError, match="the name of interface 'a\"b' cannot be given to nft"):
        events.cut(['a"b'], None)


def test_a_slow_link():
    lines = [" ".join(command) for command in events.slow("eth0", ["10.0.0.2", "fd77::2"], 0.005)]
    assert lines == [
        "tc qdisc add dev eth0 root handle c4a0: prio bands 4",
        "tc qdisc add dev eth0 parent c4a0:4 handle c4a1: netem delay 5000us limit 100000",
        "tc filter add dev eth0 parent c4a0: protocol ip prio 1 u32 match ip dst 10.0.0.2/32 flowid c4a0:4",
        "tc filter add dev eth0 parent c4a0: protocol ipv6 prio 2 u32 match ip6 dst fd77::2/128 flowid c4a0:4",
    ]
    assert " ".join(events.slow_no_more("eth0")) == "tc qdisc del dev eth0 root handle c4a0:"
