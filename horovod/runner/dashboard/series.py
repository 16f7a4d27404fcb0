"""A figure over the time of a job, however long it lasts: a bounded number of points, each the mean of a stretch of
time, which doubles when there are too many. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

POINTS = 240


class Series:
    """Of rows of numbers, or None where there is none."""

    def __init__(self, columns: int) -> None:
        self.width = 1.0
        """s of a point."""
        self._columns = columns
        self._rows: dict[int, _Point] = {}  # by number of the stretch, in order

    def add(self, version: int, at: float, values: Sequence[float | None]) -> None:
        """`at`: s since the start."""
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
        """What has changed after that version: `rows`, [s since the start, values...], in place of those at the same
        time; those of another `width` are to be forgotten. None: nothing."""
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
