"""Messages that ranks send to the driver's output, marked within their standard output."""

from __future__ import annotations

import os
from typing import Any

DRIVER_LOG = "HOROVOD_SPARK_DRIVER_LOG"
"""Environment variable that is set for ranks whose output a DriverLog reads."""
_MARK = "\x02driver\x03"  # control characters that programs do not print and that do not end a line


def log_to_driver(message: str) -> None:
    """Show a message of this rank in the driver's output (in a notebook, below the cell).

    It is shown with every ``driver_log_verbosity``. Outside of jobs of ``HorovodRunner`` it is printed.

    Args:
        message: The text, which may have several lines.

    Raises:
        TypeError: If ``message`` is not a string.
    """
    if not isinstance(message, str):
        raise TypeError(f"message is {message!r}, accepted is a string")
    mark = _MARK if os.environ.get(DRIVER_LOG) else ""
    print("\n".join(mark + line for line in message.splitlines() or [""]), flush=True)


class DriverLog:
    """Text stream for the ranks' output that forwards lines of ``log_to_driver`` to ``target``.

    With ``everything`` it forwards all other lines, too.
    """

    def __init__(self, target: Any, *, everything: bool) -> None:
        self._target = target
        self._everything = everything
        self._left = ""  # beginning of an incomplete line

    def write(self, text: str) -> int:
        *lines, self._left = (self._left + text).split("\n")
        for line in lines:
            self._line(line)
        return len(text)

    def flush(self) -> None:
        self._target.flush()

    def close(self) -> None:
        """Forward an incomplete last line and flush; the target stays open."""
        if self._left:
            self._line(self._left)
            self._left = ""
        self._target.flush()

    def _line(self, line: str) -> None:
        _, mark, meant = line.partition(_MARK)
        if mark or self._everything:
            self._target.write((meant if mark else line) + "\n")
