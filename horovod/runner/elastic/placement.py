"""Which rank a worker gets in the next epoch. Pure.

Ranks of a host follow one another. Hosts on which somebody survives come first and keep their order, and so do the
survivors of a host; who is new comes after them. So rank 0, whose state all others get, has been there before, and what
survives keeps its order: a survivor's rank can only become smaller, unless somebody joins on a host before its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from horovod.runner.plan.hosts import Slot


@dataclass(frozen=True)
class Candidate:
    """A worker that can be in the next epoch. `rank`: it had in the last one; None: it is new."""

    worker: int
    host: str
    rank: int | None = None


def order(candidates: Sequence[Candidate], hosts: Sequence[str]) -> list[Candidate]:
    """The candidates by rank. `hosts`: those that are known, in the order in which they are to be used."""
    first: dict[str, int] = {}
    for one in candidates:
        if one.rank is not None:
            first[one.host] = min(one.rank, first.get(one.host, one.rank))
    known = {host: place for place, host in enumerate(hosts)}

    def key(one: Candidate) -> tuple[bool, int, str, bool, int, int]:
        survives = one.host in first
        place = first[one.host] if survives else known.get(one.host, len(known))
        new = one.rank is None
        return not survives, place, one.host, new, one.worker if new else 0, 0 if one.rank is None else one.rank

    return sorted(candidates, key=key)


def choose(candidates: Sequence[Candidate], most: int | None, hosts: Sequence[str]) -> list[Candidate]:
    """At most `most` of them, survivors before who is new, in their new order."""
    ordered = order(candidates, hosts)
    if most is None or len(ordered) <= most:
        return ordered
    kept = sorted(ordered, key=lambda one: one.rank is None)[:most]
    return order(kept, hosts)


def places(ordered: Sequence[Candidate]) -> dict[int, Slot]:
    """Each worker's place, by worker."""
    on_host: dict[str, list[int]] = {}
    for one in ordered:
        on_host.setdefault(one.host, []).append(one.worker)
    made = {}
    for rank, one in enumerate(ordered):
        local = on_host[one.host].index(one.worker)
        across = [host for host, workers in on_host.items() if len(workers) > local]
        made[one.worker] = Slot(
            rank=rank,
            size=len(ordered),
            local_rank=local,
            local_size=len(on_host[one.host]),
            cross_rank=across.index(one.host),
            cross_size=len(across),
            hostname=one.host,
        )
    return made


def foreseen(candidates: Sequence[Candidate]) -> dict[int, Slot]:
    """Each one's place if all of them were in the next epoch. They come in the order in which they were started, which
    is that of their hosts."""
    return places(order(candidates, list(dict.fromkeys(one.host for one in candidates))))


def free_slots(slots: Mapping[str, int], taken: Mapping[str, int]) -> list[str]:
    """A host for each worker that could be started: each host filled before the next, in their order."""
    return [host for host, count in slots.items() for _ in range(count - taken.get(host, 0))]
