"""Selection of the processes that are ranks, and so get the user's Ctrl-C. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def ranks_of(workers: Collection[int], called: Collection[int], parents: Mapping[int, int]) -> list[int]:
    """Return the processes that get the user's signal.

    A worker is the command that was started, sometimes a shell or a Python program around the rank. The rank is the
    process that has called `hvd.init()`. Only it gets the signal: it needs its data loaders and other helpers to end
    well, and a program around it might kill it instead of waiting. Where no process of a worker has called, all of them
    get the signal, as from a terminal.

    Args:
        workers: Process ids of the commands that were started.
        called: Process ids that reported that they had called `hvd.init()`. Some may have ended, or be numbers of
            another pid namespace.
        parents: The parent of every living process.
    """
    worker_of = {pid: worker for pid in parents if (worker := _worker(pid, workers, parents)) is not None}
    known = {worker_of[pid] for pid in called if pid in worker_of}
    return [pid for pid, worker in worker_of.items() if pid in called or worker not in known]


def _worker(pid: int, workers: Collection[int], parents: Mapping[int, int]) -> int | None:
    """Return the worker that the process is or descends from, or None."""
    seen: set[int] = set()
    while pid not in workers:
        parent = parents.get(pid)
        if parent is None or parent in seen:  # the table was read while processes came and went
            return None
        seen.add(pid)
        pid = parent
    return pid
