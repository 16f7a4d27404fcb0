"""History of bounded size for the dashboard, with time series and the last output lines of each rank."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

POINTS = 240


class Series:
    """Time series of bounded size. Each point is the mean over an interval.

    If there are more than POINTS points, the interval doubles. Missing values are None.
    """

    def __init__(self, columns: int) -> None:
        self.width = 1.0
        """Seconds per point."""
        self._columns = columns
        self._rows: dict[int, _Point] = {}  # points by the number of their interval

    def add(self, version: int, at: float, values: Sequence[float | None]) -> None:
        """Add values that were measured at time `at` (seconds since the start of the job)."""
        self._point(int(at / self.width)).add(version, values)
        while len(self._rows) > POINTS:
            self._halve(version)

    def _point(self, number: int) -> _Point:
        return self._rows.setdefault(number, _Point(self._columns))

    def _halve(self, version: int) -> None:
        rows, self._rows = self._rows, {}
        self.width *= 2
        for number, point in rows.items():
            self._point(number // 2).merge(version, point)

    def since(self, version: int) -> dict[str, Any] | None:
        """Return the points that have changed since `version`, or None if there are none.

        Each entry of `rows` is [seconds since the start, values...]. It replaces the earlier row with the same time. If
        `width` has changed, all earlier rows are obsolete.
        """
        rows = [
            [number * self.width, *point.means()] for number, point in self._rows.items() if point.version > version
        ]
        return {"width": self.width, "rows": rows} if rows else None


class _Point:
    def __init__(self, columns: int) -> None:
        self.version = 0
        self._sums = [0.0] * columns
        self._counts = [0] * columns

    def add(self, version: int, values: Sequence[float | None]) -> None:
        self.version = version
        for index, value in enumerate(values):
            if value is not None:
                self._sums[index] += value
                self._counts[index] += 1

    def merge(self, version: int, other: _Point) -> None:
        self.version = version
        self._sums = [one + more for one, more in zip(self._sums, other._sums, strict=True)]
        self._counts = [one + more for one, more in zip(self._counts, other._counts, strict=True)]

    def means(self) -> list[float | None]:
        return [
            float(f"{total / count:.5g}") if count else None
            for total, count in zip(self._sums, self._counts, strict=True)
        ]


CUT = 400  # A complete line is cut after CUT characters.
_HELD = 4 * CUT  # An incomplete line is cut after _HELD bytes.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROLS = dict.fromkeys([*range(9), *range(10, 32), *range(127, 160)])
_NUMBERS = re.compile(r"\B(?=(?:\d{3})+$)")


class Line(NamedTuple):
    """Line of output, with the version of the dashboard's state in which it was added."""

    version: int
    stream: int
    text: str


def shown(data: bytes, length: int) -> str:
    """Convert a line to text without colors and control characters. If `data` is incomplete, append the full length."""
    text = _ESCAPES.sub("", data.decode(errors="replace")).translate(_CONTROLS)
    if len(text) <= CUT and length <= len(data):
        return text
    return f"{text[:CUT]} … ({_NUMBERS.sub(',', str(length))} bytes)"


def text(words: str) -> str:
    """Convert text to a single line without colors and control characters, cut like a line of output."""
    data = words.replace("\n", " ").encode(errors="replace")
    return shown(data[:_HELD], len(data))


class _Open:
    """Output line that is still incomplete."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._length = 0
        self._returned = False

    def add(self, piece: bytes) -> None:
        """Add output to the line. A carriage return restarts the line, so that a progress bar shows its last state."""
        if not piece:
            return
        last = piece.rstrip(b"\r")
        if b"\r" in last:
            last = last[last.rindex(b"\r") + 1 :]
            self._returned = True
        if last and self._returned:
            self._data.clear()
            self._length = 0
            self._returned = False
        self._data += last[: _HELD - len(self._data)]
        self._length += len(last)
        self._returned = self._returned or piece.endswith(b"\r")

    def text(self) -> str:
        return shown(bytes(self._data), self._length)

    def take(self) -> str:
        text = self.text()
        self.__init__()  # type: ignore[misc]
        return text


class Tail:
    """Last output lines of one rank, from stdout and stderr, in order of arrival."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._open = {1: _Open(), 2: _Open()}
        self.lines: deque[Line] = deque(maxlen=keep)
        self.count = 0
        """Number of lines so far, including dropped ones."""
        self.now = ""
        """Text of the line that has not ended yet."""

    def feed(self, version: int, stream: int, data: bytes) -> None:
        """Add output of a stream. `version` is the new version of the dashboard's state."""
        begun = self._open[stream]
        *whole, rest = data.split(b"\n")
        skipped = len(whole) - self._keep
        if skipped > 0:
            del whole[:skipped]
            self.count += skipped
            begun.take()
        for piece in whole:
            begun.add(piece)
            self.lines.append(Line(version, stream, begun.take()))
        self.count += len(whole)
        begun.add(rest)
        self.now = begun.text()

    @property
    def last(self) -> str:
        """Most recent output line, even if it is incomplete."""
        return self.now or (self.lines[-1].text if self.lines else "")
