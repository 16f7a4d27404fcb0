"""Assignment of ranks to workers in the next epoch. Pure.

Ranks of a host are consecutive. Hosts with survivors come first and keep their order, and so do the survivors of a
host; new workers follow. So rank 0, whose state all others get, is a survivor. A survivor's rank can only become
smaller, unless a worker joins on a host before its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from horovod.runner.plan.hosts import Slot


@dataclass(frozen=True)
class Candidate:
    """Worker that can be a member of the next epoch. `rank` is its rank in the last one, None for a new worker."""

    worker: int
    host: str
    rank: int | None = None


def order(candidates: Sequence[Candidate], hosts: Sequence[str]) -> list[Candidate]:
    """Return the candidates in rank order. `hosts` are the known hosts in order of preference."""
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
    """Return at most `most` candidates in rank order, preferring survivors to new workers."""
    ordered = order(candidates, hosts)
    if most is None or len(ordered) <= most:
        return ordered
    kept = sorted(ordered, key=lambda one: one.rank is None)[:most]
    return order(kept, hosts)


def places(ordered: Sequence[Candidate]) -> dict[int, Slot]:
    """Return each worker's slot, by worker."""
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
    """Return each worker's slot if all candidates were members of the next epoch.

    The candidates are given in the order in which they were started, which is that of their hosts.
    """
    return places(order(candidates, list(dict.fromkeys(one.host for one in candidates))))


def free_slots(slots: Mapping[str, int], taken: Mapping[str, int]) -> list[str]:
    """Return a host for each worker that could be started, filling the hosts in their order."""
    return [host for host, count in slots.items() for _ in range(count - taken.get(host, 0))]
