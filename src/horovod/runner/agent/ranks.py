"""Selection of the processes that get the user's Ctrl-C, and the pipe for the ranks' reports."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from horovod.common.contract.reasons import LIMIT, name_of
from horovod.common.contract.worker_env import path_of_descriptor


def ranks_of(workers: Collection[int], called: Collection[int], parents: Mapping[int, int]) -> list[int]:
    """Return the processes that get the user's signal.

    A worker is the command that was started, which can be a shell or a Python program that runs the rank. The rank is
    the process that has called `hvd.init()`. Only the rank gets the signal: it needs its data loaders and other helpers
    to shut down cleanly, and a wrapper might kill it instead of waiting. If no process of a worker has called
    `hvd.init()`, all its processes get the signal, as from a terminal.

    Args:
        workers: Process ids of the commands that were started.
        called: Process ids that reported a call of `hvd.init()`. Some may have ended, or belong to another pid
            namespace.
        parents: Parent pid of every live process.
    """
    worker_of = {pid: worker for pid in parents if (worker := _worker(pid, workers, parents)) is not None}
    known = {worker_of[pid] for pid in called if pid in worker_of}
    return [pid for pid, worker in worker_of.items() if pid in called or worker not in known]


def _worker(pid: int, workers: Collection[int], parents: Mapping[int, int]) -> int | None:
    """Return the worker that `pid` is or descends from, or None."""
    seen: set[int] = set()
    while pid not in workers:
        parent = parents.get(pid)
        if parent is None or parent in seen:  # the process table was read while processes started and ended
            return None
        seen.add(pid)
        pid = parent
    return pid


# The agent's end of the pipe through which the workers of its host report; see `horovod.common.contract.reasons`.

_AT_ONCE = 16 * LIMIT  # Maximum bytes per read, so that a worker that writes nonstop cannot block the agent.


class ReportPipe:
    """Non-blocking pipe. One descriptor holds both ends open, so no end of file occurs while workers come and go."""

    def __init__(self) -> None:
        """Create the pipe. Raises OSError if that fails."""
        ends = os.pipe2(os.O_CLOEXEC)
        try:
            own = path_of_descriptor(os.getpid(), ends[0])
            self.fd = os.open(own, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            for end in ends:
                os.close(end)
        self.name = name_of(path_of_descriptor(os.getpid(), self.fd), self.fd)
        """Path by which processes of this user can open the pipe."""
        self._rest = b""

    def read(self) -> list[bytes]:
        """Return the reports received since the last call, each at most LIMIT bytes."""
        data = self._rest
        while len(data) < _AT_ONCE:
            try:
                piece = os.read(self.fd, LIMIT)
            except BlockingIOError:
                break
            data += piece
        *lines, rest = data.split(b"\n")
        self._rest = rest if len(rest) <= LIMIT else b""
        return [line for line in lines if len(line) <= LIMIT]
