"""Where residents are, and whether they fit together. Pure. Who gets which rank: ``runner.cluster.placement``."""

from __future__ import annotations

from collections.abc import Sequence

from horovod._version import __version__
from horovod.runner.cluster.placement import Machines
from horovod.runner.elastic import placement
from horovod.runner.elastic.placement import Candidate
from horovod.runner.plan.hosts import Slot
from horovod.runner.resident.seat import Resident


def hosts(residents: Sequence[Resident]) -> list[str]:
    """A name for the host of each, the same for those on one machine."""
    machines = Machines()
    return [machines.name(one.machine, one.name) for one in residents]


def seats(names: Sequence[str]) -> list[Slot]:
    """The places of ranks on these hosts, in the order of ranks."""
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
