"""Standard input of the launcher, sent to rank 0 in pieces, each after rank 0 has consumed the last one."""

from __future__ import annotations

import os

PIECE = 1 << 16


class StdinSource:
    """Standard input, read on request. Never blocks on a terminal that belongs to another process group."""

    def __init__(self, fd: int = 0) -> None:
        self._fd = fd
        self.wanted = False  # True when rank 0 has consumed all data so far
        self._ended = False
        self.terminal = os.isatty(fd)

    @property
    def in_background(self) -> bool:
        """True if we would read now, but the terminal belongs to another process group."""
        if not self.terminal or not self.wanted or self._ended:
            return False
        try:
            return os.tcgetpgrp(self._fd) != os.getpgrp()
        except OSError:  # not our controlling terminal, so job control does not apply
            return False

    def waiting_for(self) -> int | None:
        """Return the descriptor to poll for POLLIN, or None when nothing is to be read now."""
        return self._fd if self.wanted and not self._ended and not self.in_background else None

    def read(self) -> bytes | None:
        """Return the next piece, empty at the end of file, or None if none is available."""
        try:
            data = os.read(self._fd, PIECE)
        except BlockingIOError:
            return None
        except OSError:  # closed, a directory, or a terminal that has hung up
            if self.in_background:
                return None
            data = b""
        self.wanted = False
        self._ended = not data
        return data

    def close(self) -> None:
        """Record that rank 0 does not read any more."""
        self._ended = True
