"""Agent's end of the pipe for reports by the workers of its host; see `horovod.common.contract.reasons`."""

from __future__ import annotations

import os

from horovod.common.contract.reasons import LIMIT, name_of
from horovod.common.contract.worker_env import path_of_descriptor

_AT_ONCE = 16 * LIMIT  # bytes read at once, so that a writer that never stops cannot block the agent


class ReportPipe:
    """Non-blocking pipe. One descriptor is both ends, so it has no end of file while workers come and go."""

    def __init__(self) -> None:
        """Create the pipe. Raises OSError."""
        ends = os.pipe2(os.O_CLOEXEC)
        try:
            own = path_of_descriptor(os.getpid(), ends[0])
            self.fd = os.open(own, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            for end in ends:
                os.close(end)
        self.name = name_of(path_of_descriptor(os.getpid(), self.fd), self.fd)
        """Name with which processes of this user can open the pipe."""
        self._rest = b""

    def read(self) -> list[bytes]:
        """Return the reports received, each at most LIMIT bytes."""
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
