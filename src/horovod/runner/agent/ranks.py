"""Choice of the processes that receive the user's Ctrl-C, and the pipe for reports of ranks."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from horovod.common.contract.reasons import LIMIT, name_of
from horovod.common.contract.worker_env import path_of_descriptor


def ranks_of(workers: Collection[int], called: Collection[int], parents: Mapping[int, int]) -> list[int]:
    """Return the processes to which the user's signal must be sent.

    A worker is the started command. This can be a shell or another wrapper around the rank, which is the process that
    has called `hvd.init()`. Only the rank gets the signal. It needs its data loaders and other helpers to shut down,
    and a wrapper might kill it instead of waiting. If no process of a worker has called `hvd.init()`, all its processes
    get the signal, as from a terminal.

    Args:
        workers: Process ids of the started commands.
        called: Process ids that have reported a call of `hvd.init()`. Some might have ended or belong to another pid
            namespace.
        parents: Parent pid of each live process.
    """
    worker_of = {pid: worker for pid in parents if (worker := _worker(pid, workers, parents)) is not None}
    known = {worker_of[pid] for pid in called if pid in worker_of}
    return [pid for pid, worker in worker_of.items() if pid in called or worker not in known]


def _worker(pid: int, workers: Collection[int], parents: Mapping[int, int]) -> int | None:
    """Return the worker from which process `pid` descends, or None. A worker descends from itself."""
    seen: set[int] = set()
    while pid not in workers:
        parent = parents.get(pid)
        if parent is None or parent in seen:  # Processes started or ended while the process table was read.
            return None
        seen.add(pid)
        pid = parent
    return pid


# One call reads at most _AT_ONCE bytes, so that a worker that writes without pause cannot block the agent.
_AT_ONCE = 16 * LIMIT


class ReportPipe:
    """Non-blocking pipe through which workers send reports to the agent.

    One descriptor holds both ends open, so that the pipe does not end when all workers have closed it.
    """

    def __init__(self) -> None:
        """Create the pipe. Raises OSError if no pipe can be created."""
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
        """Return the reports that have arrived since the last call. Each has at most LIMIT bytes."""
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
