"""What ranks tell the driver on purpose, among all that they print."""

from __future__ import annotations

import os
from typing import Any

DRIVER_LOG = "HOROVOD_SPARK_DRIVER_LOG"
"""Set for ranks whose output is read by a DriverLog."""
_MARK = "\x02driver\x03"  # control characters that no program prints, and at which no line ends


def log_to_driver(message: str) -> None:
    """From a rank: shows a message where the driver's program prints, in a notebook below the cell, at any
    ``driver_log_verbosity``. Elsewhere it is printed. Raises TypeError for what is no string."""
    if not isinstance(message, str):
        raise TypeError(f"message is {message!r}, accepted is a string")
    mark = _MARK if os.environ.get(DRIVER_LOG) else ""
    print("\n".join(mark + line for line in message.splitlines() or [""]), flush=True)


class DriverLog:
    """A stream of text for the ranks' output: hands on to ``target`` the lines that were meant for the driver, and with
    ``everything`` the others too."""

    def __init__(self, target: Any, *, everything: bool) -> None:
        self._target = target
        self._everything = everything
        self._left = ""  # of a line that is not complete yet

    def write(self, text: str) -> int:
        *lines, self._left = (self._left + text).split("\n")
        for line in lines:
            self._line(line)
        return len(text)

    def flush(self) -> None:
        self._target.flush()

    def close(self) -> None:
        """The target stays open."""
        if self._left:
            self._line(self._left)
            self._left = ""
        self._target.flush()

    def _line(self, line: str) -> None:
        _, mark, meant = line.partition(_MARK)
        if mark or self._everything:
            self._target.write((meant if mark else line) + "\n")
