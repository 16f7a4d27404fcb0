"""Injectable faults, their targets, the input for nft(8) and tc(8), and the report on injected faults."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

TABLE = "horovod_chaos"
_DROPS = f"""
add table inet {TABLE}
add set inet {TABLE} down {{ type ifname; flags timeout; }}
add chain inet {TABLE} in {{ type filter hook input priority -300; }}
add chain inet {TABLE} out {{ type filter hook output priority -300; }}
flush chain inet {TABLE} in
flush chain inet {TABLE} out
add rule inet {TABLE} in iifname @down drop
add rule inet {TABLE} out oifname @down drop
"""
_NAME = re.compile(r"[\w.@:-]+", re.ASCII)

_ROOT, _SLOW = "c4a0:", "c4a1:"
# Band of tc's prio queue for delayed packets. The first three bands are the defaults.
_FOURTH = f"{_ROOT}4"
# Maximum number of queued packets. A lower limit would drop packets.
_ROOM = "100000"


def prepare() -> str:
    """Return input for `nft -f -` that creates the rules without applying them to any interface.

    Running nft with this input also tests for missing permissions or tools. It can be run repeatedly.
    """
    return _DROPS


def cut(interfaces: Iterable[str], lasts: float | None) -> str:
    """Return input for `nft -f -` that makes the given interfaces drop all packets.

    Args:
        interfaces: Names of the interfaces.
        lasts: How long the packets are dropped, in seconds. None means no limit.

    Raises:
        ValueError: If nft cannot use the name of an interface. The message contains the name.
    """
    until = "" if lasts is None else f" timeout {max(1, round(lasts * 1000))}ms"
    names = list(interfaces)
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"the name of interface {name!r} cannot be given to nft")
    elements = ", ".join(f'"{name}"{until}' for name in names)
    return f"flush set inet {TABLE} down\nadd element inet {TABLE} down {{ {elements} }}\n"


def slow(interface: str, addresses: Sequence[str], by: float) -> list[list[str]]:
    """Return commands that delay an interface's outgoing packets to the given addresses by ``by`` seconds.

    Other packets are not delayed. The first command fails if the interface already has a manually configured queueing
    discipline.
    """
    device = ["dev", interface]
    filters = []
    for address in addresses:
        six = ":" in address
        match = ["match", "ip6", "dst", f"{address}/128"] if six else ["match", "ip", "dst", f"{address}/32"]
        which = ["protocol", "ipv6", "prio", "2"] if six else ["protocol", "ip", "prio", "1"]
        filters.append(
            ["tc", "filter", "add", *device, "parent", _ROOT, *which, "u32", *match, "flowid", _FOURTH],
        )
    delay = ["netem", "delay", f"{max(1, round(by * 1e6))}us", "limit", _ROOM]
    return [
        ["tc", "qdisc", "add", *device, "root", "handle", _ROOT, "prio", "bands", "4"],
        ["tc", "qdisc", "add", *device, "parent", _FOURTH, "handle", _SLOW, *delay],
        *filters,
    ]


def slow_no_more(interface: str) -> list[str]:
    """Return the command that removes the delay added by ``slow``."""
    return ["tc", "qdisc", "del", "dev", interface, "root", "handle", _ROOT]


HEAD_START = 0.5
"""Seconds between the announcement that a host will be disconnected and the disconnection itself."""


class Kind(Enum):
    """Kind of a fault. The value is its name in plans.

    Attributes:
        KILL: Fault in which the process gets SIGKILL.
        STOP: Fault in which the process gets SIGSTOP, and later SIGCONT.
        RAISE: Fault in which the program raises an exception.
        EXIT: Fault in which the program exits.
        PREEMPT: Fault in which the process gets SIGTERM, as from a cloud that stops a machine.
        SLOW: Fault that delays packets between the hosts of two ranks.
        CUT: Fault that disconnects a host from the network.
    """

    KILL = "kill"
    STOP = "stop"
    RAISE = "raise"
    EXIT = "exit"
    PREEMPT = "preempt"
    SLOW = "slow"
    CUT = "cut"


@dataclass(frozen=True)
class Event:
    """Fault to inject into a job.

    The target is one of ``rank``, ``host``, ``link`` or ``pick``. The time of the fault is ``step`` or ``after``.
    Without a time, the fault occurs when the job starts.

    Attributes:
        kind: Kind of the fault.
        rank: Target rank.
        host: Target host.
        link: Two ranks whose connection is the target.
        pick: Number from 0 to 1 that selects one of the ranks (or hosts) that exist when the fault occurs.
        step: Step at whose beginning the fault occurs.
        after: Seconds from the first epoch until the fault occurs.
        lasts: Duration in seconds. None means until the job ends.
        by: Delay of packets in seconds.
        code: Exit code of the program.
    """

    kind: Kind
    rank: int | None = None
    host: str | None = None
    link: tuple[int, int] | None = None
    pick: float | None = None
    step: int | None = None
    after: float | None = None
    lasts: float | None = None
    by: float | None = None
    code: int | None = None

    def __str__(self) -> str:
        """Format the event as in a plan.

        A random target is written as the number from 0 to 1 that selects it.
        """
        values = {
            "rank": self.rank,
            "host": self.host,
            "link": None if self.link is None else f"{self.link[0]}-{self.link[1]}",
            "pick": None if self.pick is None else f"{self.pick:.6f}",
            "code": self.code,
            "by": None if self.by is None else duration(self.by),
            "step": self.step,
            "after": None if self.after is None else duration(self.after),
            "for": None if self.lasts is None else duration(self.lasts),
        }
        return " ".join([self.kind.value, *(f"{name}={text}" for name, text in values.items() if text is not None)])

    def meets(self, there: int) -> int:
        """Return the index of a randomly picked target. ``there`` is the number of ranks or hosts to pick from."""
        assert self.pick is not None
        return min(there - 1, int(self.pick * there))


def duration(seconds: float) -> str:
    """Format a time as in a plan, in the largest suitable unit."""
    for unit, size in (("h", 3600.0), ("m", 60.0), ("s", 1.0), ("ms", 0.001)):
        if seconds >= size:
            return f"{seconds / size:.6g}{unit}"
    return f"{seconds / 0.001:.6g}ms"


# The code below creates the report for ``--chaos-report``.

AGAIN = "steps that are done again: {}"
"""Message of a rank after a failure, with the number of repeated steps."""


@dataclass(frozen=True)
class Outcome:
    """Result of one event. All times are in seconds on the same clock.

    Attributes:
        event: The event.
        at: Time when the event was injected.
        detected: Time when the launcher or a rank noticed it, or None if it was not noticed yet.
        recovered: Time when the next epoch started to run, or None if it has not started yet.
    """

    event: Event
    at: float
    detected: float | None = None
    recovered: float | None = None


def percentile(values: Sequence[float], part: float) -> float:
    """Return the ``part``-quantile of ``values`` (``part`` from 0 to 1), without interpolation."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -int(-part * len(ordered) // 1) - 1))]


def lines(outcomes: Sequence[Outcome], again: int | None = None) -> list[str]:
    """Summarize the number of events and their detection and recovery times, as lines of text.

    ``again`` is the number of repeated steps, or None if unknown.
    """
    if not outcomes:
        return ["chaos: no event"]
    kinds: dict[str, int] = {}
    for one in outcomes:
        kinds[one.event.kind.value] = kinds.get(one.event.kind.value, 0) + 1
    what = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    detected = [one.detected - one.at for one in outcomes if one.detected is not None]
    recovered = [one.recovered - one.at for one in outcomes if one.recovered is not None]
    events = "1 event" if len(outcomes) == 1 else f"{len(outcomes)} events"
    made = [f"chaos: {events} ({what}), {len(detected)} detected, {len(recovered)} recovered from"]
    if again is not None:
        made.append(f"chaos: {again} {'step' if again == 1 else 'steps'} done again")
    for name, values in (("detected", detected), ("recovered", recovered)):
        if values:
            p50, p99 = percentile(values, 0.5), percentile(values, 0.99)
            made.append(f"chaos: {name} after p50 {p50:.3f} s, p99 {p99:.3f} s, at most {max(values):.3f} s")
    return made


# The code below determines an event's target among an epoch's ranks.

ON_NETWORKS = frozenset((Kind.SLOW, Kind.CUT))
"""Kinds of faults that a rank injects into its host's network and not into itself."""


@dataclass(frozen=True)
class Member:
    """Host and network of a rank.

    ``network`` is the same for ranks that share network interfaces. ``addresses`` are the addresses of these
    interfaces.
    """

    host: str
    network: str = ""
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ranks:
    """All ranks that take part in an epoch. ``own`` is this process's rank."""

    own: int
    members: tuple[Member, ...]


def concerns(event: Event, ranks: Ranks) -> bool:
    """Return True if this rank must inject the event. Rank 0 reports events that cannot be injected."""
    if event.kind in ON_NETWORKS:
        return ranks.own in (acting(event, ranks) or (0,))
    size = len(ranks.members)
    return (event.rank if event.pick is None else event.meets(size)) == ranks.own


def acting(event: Event, ranks: Ranks) -> tuple[int, ...]:
    """Return the ranks that inject a network fault: the first rank of the affected host, or both ends of the link.

    The result is empty if the fault cannot be injected (see ``why_not``).
    """
    if why_not(event, ranks):
        return ()
    return (hosts(ranks).index(host(event, ranks)),) if event.kind is Kind.CUT else link(event, ranks)


def why_not(event: Event, ranks: Ranks) -> str:
    """Return the reason why no rank can inject this network fault, or "" if none is known."""
    if event.kind is Kind.CUT:
        if event.pick is not None and event.lasts is None:
            return "random faults cut hosts off only where kinds= names it"
        if event.pick is None and event.host not in hosts(ranks):
            return f"no rank is on host {event.host}"
        if len({member.network for member in ranks.members}) == 1:
            return "all ranks are on one machine, with no network between them"
        return ""
    pair = link(event, ranks)
    if not pair:
        return "no two ranks have a network between them"
    for rank in pair:
        if rank >= len(ranks.members):
            return f"there is no rank {rank}"
    one, other = (ranks.members[rank] for rank in pair)
    if one.network == other.network:
        return f"ranks {pair[0]} and {pair[1]} are on one machine, with no network between them"
    return ""


def hosts(ranks: Ranks) -> list[str]:
    """Return the host of each rank, as a list."""
    return [member.host for member in ranks.members]


def host(event: Event, ranks: Ranks) -> str:
    """Return the host that the event disconnects from the network."""
    if event.pick is None:
        return event.host or ""
    there = list(dict.fromkeys(hosts(ranks)))
    return there[event.meets(len(there))]


def link(event: Event, ranks: Ranks) -> tuple[int, ...]:
    """Return the two ranks of the event's link. For a random link, pick two ranks on different hosts.

    The result is empty if no two ranks are on different hosts.
    """
    if event.pick is None:
        return event.link or ()
    there = list(enumerate(member.network for member in ranks.members))
    pairs = [(one, other) for one, here in there for other, far in there[one + 1 :] if here != far]
    return pairs[event.meets(len(pairs))] if pairs else ()
