"""Whom an event is for, among the ranks that there are when it happens, and when it cannot happen at all. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from horovod.chaos.events import Event, Kind

ON_NETWORKS = frozenset((Kind.SLOW, Kind.CUT))
"""Kinds that a rank does to the network of its host, not to itself."""


@dataclass(frozen=True)
class Member:
    """Where a rank is. ``network``: equal for ranks that share interfaces; ``addresses``: of those interfaces."""

    host: str
    network: str = ""
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ranks:
    """Those of an epoch, as the one with number ``own`` sees them."""

    own: int
    members: tuple[Member, ...]


def concerns(event: Event, ranks: Ranks) -> bool:
    """Is it for this rank to act? What nobody can do, rank 0 says."""
    if event.kind in ON_NETWORKS:
        return ranks.own in (acting(event, ranks) or (0,))
    size = len(ranks.members)
    return (event.rank if event.pick is None else event.meets(size)) == ranks.own


def acting(event: Event, ranks: Ranks) -> tuple[int, ...]:
    """Who has to act on a network: the first rank of a host that is cut, both ends of a link; nobody where ``why_not``
    says why."""
    if why_not(event, ranks):
        return ()
    return (hosts(ranks).index(host(event, ranks)),) if event.kind is Kind.CUT else link(event, ranks)


def why_not(event: Event, ranks: Ranks) -> str:
    """Why nobody can do this to a network; empty: somebody may be able to."""
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
    """The host of each rank."""
    return [member.host for member in ranks.members]


def host(event: Event, ranks: Ranks) -> str:
    """Which one is cut off."""
    if event.pick is None:
        return event.host or ""
    there = list(dict.fromkeys(hosts(ranks)))
    return there[event.meets(len(there))]


def link(event: Event, ranks: Ranks) -> tuple[int, ...]:
    """The two ranks; none where one of all links that lead over a network was to be picked, and there is none."""
    if event.pick is None:
        return event.link or ()
    there = list(enumerate(member.network for member in ranks.members))
    pairs = [(one, other) for one, here in there for other, far in there[one + 1 :] if here != far]
    return pairs[event.meets(len(pairs))] if pairs else ()
