"""Which rank each resident gets, and whether residents fit together. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from horovod._version import __version__
from horovod.runner.elastic import placement
from horovod.runner.elastic.placement import Candidate
from horovod.runner.plan.hosts import Slot


@dataclass(frozen=True)
class Resident:
    """What a process says of itself. `name`: its host's; `machine`: the same for processes that can share memory;
    `python`: "3.11"; `public`: the key (32 bytes) by which the driver knows it."""

    name: str
    machine: str
    pid: int
    version: str
    python: str
    public: bytes


def hosts(residents: Sequence[Resident]) -> list[str]:
    """A name for the host of each: the host's own, with a number where several machines have the same name, as
    containers may."""
    machines: dict[str, list[str]] = {}
    for one in residents:
        known = machines.setdefault(one.name, [])
        if one.machine not in known:
            known.append(one.machine)
    return [
        one.name if len(machines[one.name]) == 1 else f"{one.name}-{1 + machines[one.name].index(one.machine)}"
        for one in residents
    ]


def grouped(names: Sequence[str]) -> list[int]:
    """The numbers of the residents in the order of their ranks, by the names of their hosts: ranks of a host follow one
    another, and hosts come in the order in which they are named first."""
    first = {name: index for index, name in reversed(list(enumerate(names)))}
    return sorted(range(len(names)), key=lambda index: (first[names[index]], index))


def seats(names: Sequence[str]) -> list[Slot]:
    """The places of ranks on these hosts."""
    places = placement.places([Candidate(rank, name) for rank, name in enumerate(names)])
    return [places[rank] for rank in range(len(names))]


def misfit(residents: Sequence[Resident], version: str = __version__) -> str:
    """Why these cannot be one job, naming who differs in what; empty: they can. `version`: of horovod, the driver's."""
    for index, one in enumerate(residents):
        who = f"worker {index} (host {one.name}, pid {one.pid})"
        if one.version != version:
            return f"{who} has horovod {one.version}, the driver has {version}; install the same on all hosts"
        if one.python != residents[0].python:
            return f"{who} has Python {one.python}, worker 0 has {residents[0].python}; install the same on all hosts"
    return ""
