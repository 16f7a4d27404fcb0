"""Time series of bounded size: each point is the mean of an interval, which doubles when there are too many. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

POINTS = 240


class Series:
    """Series of rows of numbers, or None for missing values."""

    def __init__(self, columns: int) -> None:
        self.width = 1.0
        """Return the number of seconds per point."""
        self._columns = columns
        self._rows: dict[int, _Point] = {}  # number of the interval to its point, in order

    def add(self, version: int, at: float, values: Sequence[float | None]) -> None:
        """Add values at time `at`, in seconds since the start."""
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
        """Return the changes after that version, or None.

        `rows` are lists [seconds since the start, values...] that replace those of the same times. Rows of another
        `width` are obsolete.
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
