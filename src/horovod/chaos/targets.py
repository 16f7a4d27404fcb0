"""Selection of an event's target among the existing ranks, and reasons why an event is impossible. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from horovod.chaos.events import Event, Kind

ON_NETWORKS = frozenset((Kind.SLOW, Kind.CUT))
"""Kinds that a rank injects into its host's network, not into itself."""


@dataclass(frozen=True)
class Member:
    """Host and network of a rank.

    ``network``: equal for ranks that share interfaces; ``addresses``: those of the interfaces.
    """

    host: str
    network: str = ""
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ranks:
    """Ranks of an epoch, as seen by rank ``own``."""

    own: int
    members: tuple[Member, ...]


def concerns(event: Event, ranks: Ranks) -> bool:
    """Return True if this rank must act. Rank 0 reports events that no rank can carry out."""
    if event.kind in ON_NETWORKS:
        return ranks.own in (acting(event, ranks) or (0,))
    size = len(ranks.members)
    return (event.rank if event.pick is None else event.meets(size)) == ranks.own


def acting(event: Event, ranks: Ranks) -> tuple[int, ...]:
    """Return the ranks that act on a network: the first rank of the host to cut, or both ends of the link.

    Empty if ``why_not`` has a reason.
    """
    if why_not(event, ranks):
        return ()
    return (hosts(ranks).index(host(event, ranks)),) if event.kind is Kind.CUT else link(event, ranks)


def why_not(event: Event, ranks: Ranks) -> str:
    """Return why no rank can inject this network fault; empty if one may be able to."""
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
    """Return the host of each rank."""
    return [member.host for member in ranks.members]


def host(event: Event, ranks: Ranks) -> str:
    """Return the host that is cut off."""
    if event.pick is None:
        return event.host or ""
    there = list(dict.fromkeys(hosts(ranks)))
    return there[event.meets(len(there))]


def link(event: Event, ranks: Ranks) -> tuple[int, ...]:
    """Return the two ranks of the link; empty if one was to be picked and there is no link over a network."""
    if event.pick is None:
        return event.link or ()
    there = list(enumerate(member.network for member in ranks.members))
    pairs = [(one, other) for one, here in there for other, far in there[one + 1 :] if here != far]
    return pairs[event.meets(len(pairs))] if pairs else ()
