"""The agent's end of the pipe in which the workers of its host report (horovod.common.contract.reasons)."""

from __future__ import annotations

import os

from horovod.common.contract.reasons import LIMIT, name_of
from horovod.common.contract.worker_env import path_of_descriptor

_AT_ONCE = 16 * LIMIT  # bytes; who writes without end must not keep the agent from its work


class ReportPipe:
    """One descriptor for both ends, so that the pipe has no end of file while workers come and go. Never blocks."""

    def __init__(self) -> None:
        """Raises OSError."""
        ends = os.pipe2(os.O_CLOEXEC)
        try:
            own = path_of_descriptor(os.getpid(), ends[0])
            self.fd = os.open(own, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            for end in ends:
                os.close(end)
        self.name = name_of(path_of_descriptor(os.getpid(), self.fd), self.fd)
        """By which processes of this user can open it."""
        self._rest = b""

    def read(self) -> list[bytes]:
        """The reports that have come, none longer than LIMIT."""
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
