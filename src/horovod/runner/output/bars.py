"""Progress bars at the bottom of a terminal.

Functions return the bytes to write. The caller passes the size of the terminal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from horovod.runner.output.row import Row, cells_of, cut

ERASE = b"\r\x1b[K"
# Number of rightmost columns that stay empty, because a terminal can show ^C or ^Z at the cursor
MARGIN = 3
# Maximum number of lines that a terminal is assumed to have
LINES_LIMIT = 1000
FRAME = 0.05  # Minimum seconds between two redraws of the progress bars
_SGR = re.compile("\x1b\\[[0-9;:]*m")
_TO_THE_END = "\x1b[K"
_BELOW = "\x1b[J"

Source = tuple[int, int]  # (rank, stream), where stream is 1 for stdout and 2 for stderr


@dataclass(frozen=True)
class Bars:
    """Progress bars that one rank draws on one stream.

    Attributes:
        stream: 1 for stdout, 2 for stderr.
        prefix: Text to print before each bar, such as the rank.
        rows: Lines of the terminal that contain the bars.
    """

    stream: int
    prefix: str
    rows: Sequence[Row]


class Area:
    r"""Area below the last output line, with the progress bars in rank order and the launcher's status line.

    The cursor stays after the last character of the area. To print lines above it, erase the area, write the lines, and
    draw it again.

    If `full` is True, the terminal can erase lines and move the cursor up. If it is False, the area is a single row
    that is rewritten with \r. This row shows the first bar and the number of other bars.
    """

    def __init__(self, full: bool) -> None:
        self.full = full
        self.stream = 2  # Stream on which the progress bars are drawn: stdout (1) or stderr (2)
        self.changed = False
        self.next = 0.0  # Earliest time of the next redraw (monotonic, s)
        self._bars: dict[Source, Bars] = {}
        self._status = ""
        self._drawn: list[str] = []

    def draw(self, source: Source, bars: Bars) -> None:
        """Set the progress bars of one stream. Remove the bars if `bars` has no rows."""
        if bars.rows:
            self._bars[source] = bars
        elif self._bars.pop(source, None) is None:
            return
        self.changed = True

    def set_status(self, status: str) -> None:
        """Set the launcher's status line. An empty string removes the line."""
        if status != self._status:
            self._status, self.changed = status, True

    def clear(self) -> None:
        """Remove all bars and the status line."""
        self.changed = self.changed or bool(self._bars or self._status)
        self._bars, self._status = {}, ""

    @property
    def is_visible(self) -> bool:
        """True if any progress bar or status line is currently visible."""
        return bool(self._drawn)

    def move_down(self, lines: int) -> None:
        """Record that the user pressed Enter, which moved the cursor down by `lines` lines."""
        if self._drawn and self.full:
            self._drawn += [""] * min(lines, LINES_LIMIT - len(self._drawn))

    def erase(self) -> bytes:
        """Return the bytes that erase the drawn progress bars and move the cursor to the first of their rows."""
        if not self._drawn:
            return b""
        drawn, self._drawn = self._drawn, []
        self.changed, self.next = True, 0.0
        if not self.full:
            return ("\r" + " " * _columns_of(drawn[0]) + "\r").encode()
        return (_up(len(drawn)) + (_BELOW if len(drawn) > 1 else _TO_THE_END)).encode()

    def frame(self, columns: int, lines: int, now: float) -> bytes:
        """Return the bytes that redraw the progress bars on a terminal of `columns` by `lines` characters."""
        self.changed, self.next = False, now + FRAME
        columns = max(1, columns - MARGIN)
        rows = self._fitting(columns, max(1, lines - 1)) if self.full else self._one(columns)
        if rows == self._drawn:
            return b""
        if not rows:
            erased = self.erase()
            self.changed = False
            return erased
        text = self._rewrite(rows) if self.full else self._overwrite(rows)
        self._drawn = rows
        return text.encode(errors="surrogateescape")

    def _rewrite(self, rows: list[str]) -> str:
        text = _up(len(self._drawn))
        last = len(rows) - 1
        for place, row in enumerate(rows):
            if place >= len(self._drawn) or row != self._drawn[place] or place == last:
                text += "\r" + row + _TO_THE_END
            if place < last:
                text += "\r\n"
        return text + (_BELOW if len(self._drawn) > len(rows) else "")

    def _overwrite(self, rows: list[str]) -> str:
        before = _columns_of(self._drawn[0]) if self._drawn else 0
        return "\r" + rows[0] + " " * (before - _columns_of(rows[0]))

    def _all(self) -> list[tuple[Bars, Row]]:
        return [(bars, row) for _, bars in sorted(self._bars.items()) for row in bars.rows if not row.blank]

    def _fitting(self, columns: int, limit: int) -> list[str]:
        bars = self._all()
        self._choose_stream(bars)
        status = [_clipped(self._status, columns)] if self._status and limit > 1 else []
        room = limit - len(status)
        if len(bars) <= room or room == 1:
            more = []
        else:
            room -= 1
            more = [_clipped(_more_bars(len(bars) - room), columns)]
        return [row.shown(bar.prefix, columns) for bar, row in bars[:room]] + more + status

    def _choose_stream(self, bars: list[tuple[Bars, Row]]) -> None:
        # Change the stream only while no bar is on the screen, because rows must be erased on the stream they are on.
        if not self._drawn:
            self.stream = bars[0][0].stream if bars else 2

    def _one(self, columns: int) -> list[str]:
        bars = self._all()
        if not bars:
            return []
        first, row = bars[0]
        self._choose_stream(bars)
        more = f" ({_more_bars(len(bars) - 1)})" if len(bars) > 1 else ""
        return [row.shown(first.prefix, max(1, columns - len(more))) + more]


def _more_bars(count: int) -> str:
    return f"and {count} more progress bar{'s' if count > 1 else ''}"


def _up(lines: int) -> str:
    """Return the escape sequence that moves the cursor up from the last of `lines` lines to the start of the first."""
    if not lines:
        return ""
    return f"\r\x1b[{lines - 1}A" if lines > 1 else "\r"


def _clipped(text: str, columns: int) -> str:
    return "".join(cut(cells_of(text), columns))


def _columns_of(text: str) -> int:
    return len(cells_of(_SGR.sub("", text)))
