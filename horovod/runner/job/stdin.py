"""The launcher's standard input on its way to rank 0, a piece at a time and only when rank 0 has taken the last one."""

from __future__ import annotations

import os

PIECE = 1 << 16


class StdinSource:
    """Reads when asked to, never blocks on a terminal that belongs to another job, and ends at the end of file."""

    def __init__(self, fd: int = 0) -> None:
        self._fd = fd
        self.wanted = False  # the reader has taken everything so far
        self._ended = False
        self.terminal = os.isatty(fd)

    @property
    def in_background(self) -> bool:
        """Is it a terminal from which another process group may read now, and would we read?"""
        if not self.terminal or not self.wanted or self._ended:
            return False
        try:
            return os.tcgetpgrp(self._fd) != os.getpgrp()
        except OSError:  # not our controlling terminal, so nobody's job control applies
            return False

    def waiting_for(self) -> int | None:
        """The descriptor to poll for POLLIN, None when there is nothing to read now."""
        return self._fd if self.wanted and not self._ended and not self.in_background else None

    def read(self) -> bytes | None:
        """The next piece, empty at the end of file, None when there is none after all."""
        try:
            data = os.read(self._fd, PIECE)
        except BlockingIOError:
            return None
        except OSError:  # closed, a directory, a terminal that has hung up
            if self.in_background:
                return None
            data = b""
        self.wanted = False
        self._ended = not data
        return data

    def close(self) -> None:
        """Nobody reads any more."""
        self._ended = True
