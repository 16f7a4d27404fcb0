"""Hosts of external workers, and whether the workers fit together. Pure. Ranks: ``runner.cluster.placement``."""

from __future__ import annotations

from collections.abc import Sequence

from horovod._version import __version__
from horovod.runner.cluster.placement import Machines
from horovod.runner.elastic import placement
from horovod.runner.elastic.placement import Candidate
from horovod.runner.external_workers.assignment import ExternalWorker
from horovod.runner.plan.hosts import Slot


def hosts(workers: Sequence[ExternalWorker]) -> list[str]:
    """Return a name for each worker's host, equal for those on the same machine."""
    machines = Machines()
    return [machines.name(one.machine, one.name) for one in workers]


def slots(names: Sequence[str]) -> list[Slot]:
    """Return the slots of ranks on these hosts, given in rank order."""
    places = placement.places([Candidate(rank, name) for rank, name in enumerate(names)])
    return [places[rank] for rank in range(len(names))]


def misfit(workers: Sequence[ExternalWorker], version: str = __version__) -> str:
    """Return why these workers cannot form one job, or an empty string. `version` is the driver's horovod version."""
    for index, one in enumerate(workers):
        who = f"worker {index} (host {one.name}, pid {one.pid})"
        if one.version != version:
            return f"{who} has horovod {one.version}, the driver has {version}; install the same on all hosts"
        if one.python != workers[0].python:
            return f"{who} has Python {one.python}, worker 0 has {workers[0].python}; install the same on all hosts"
    return ""
