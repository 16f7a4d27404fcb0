"""Parser for the workers' event files of elastic.py, and functions that compute results from the events."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from report import quantile


@dataclass(frozen=True)
class Line:
    """Event recorded by a worker: one line of its event file.

    ``at`` is the time in seconds on the monotonic clock, which all processes of this machine share.
    """

    at: float
    pid: int
    # Kind of event. The contents of ``words`` are step, rank and size for "begins", and number and size for "step".
    what: str
    words: tuple[str, ...] = ()

    def number(self, place: int) -> int:
        return int(self.words[place])


def parse(pid: int, text: str) -> list[Line]:
    """Parse the events of one worker, ignoring a last line left incomplete by a kill."""
    found = []
    for line in text.split("\n")[:-1]:
        at, kind, *fields = line.split()
        found.append(Line(float(at), pid, kind, tuple(fields)))
    return found


def members(lines: Iterable[Line], living: Collection[int]) -> dict[int, tuple[int, int]]:
    """Return the latest rank and size of each live worker that has begun training, keyed by process id."""
    ordered = sorted(lines, key=lambda line: line.at)
    return {
        line.pid: (line.number(1), line.number(2)) for line in ordered if line.what == "begins" and line.pid in living
    }


def first_step_after(lines: Iterable[Line], pid: int, since: float, size: int | None = None) -> Line | None:
    """Return the first step that a worker completed after it restarted later than `since`, in a job of `size` ranks."""
    started = False
    for line in sorted((line for line in lines if line.pid == pid and line.at > since), key=lambda line: line.at):
        if line.what == "begins":
            started = size is None or line.number(2) == size
        elif line.what == "step" and started:
            return line
    return None


def last_step_before(lines: Iterable[Line], pid: int, until: float) -> Line | None:
    steps = [line for line in lines if line.pid == pid and line.what == "step" and line.at <= until]
    return max(steps, key=lambda line: line.at) if steps else None


def recovery(lines: Sequence[Line], pids: Collection[int], at: float) -> float | None:
    """Return the seconds from `at` until all workers have restarted and completed a step, or None if some have not."""
    firsts = [first_step_after(lines, pid, at) for pid in pids]
    return max(line.at for line in firsts if line) - at if firsts and all(firsts) else None


def lost(lines: Sequence[Line], pids: Collection[int], at: float) -> int:
    """Return how many steps the workers had to repeat after a failure at time `at`.

    Steps are counted from the lowest step with which a worker resumed to the highest step that any worker had finished
    before.
    """
    firsts = [first for pid in pids if (first := first_step_after(lines, pid, at))]
    began = min(first.at for first in firsts)
    done = [line.number(0) for line in lines if line.what == "step" and line.at < began]
    return max(0, max(done) - min(first.number(0) for first in firsts) + 1)


def pause(lines: Sequence[Line], pids: Collection[int], since: float, size: int) -> float | None:
    """Return the longest gap in seconds between two steps of any worker when the job grew to `size` ranks."""
    longest = 0.0
    for pid in pids:
        first = first_step_after(lines, pid, since, size)
        begins = first and max(
            line.at for line in lines if line.pid == pid and line.what == "begins" and line.at < first.at
        )
        last = begins and last_step_before(lines, pid, begins)
        if not first or not last:
            return None
        longest = max(longest, first.at - last.at)
    return longest


def seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 10 else f"{value:.2f} s" if value >= 1 else f"{value * 1000:.0f} ms"


def spread(values: Sequence[float]) -> str:
    """Format the median, 99th percentile and maximum of the values as a table cell."""
    if not values:
        return "-"
    return f"p50 {seconds(quantile(values, 0.5))}, p99 {seconds(quantile(values, 0.99))}, max {seconds(max(values))}"


def row(kind: str, figure: str) -> str:
    return f"| {kind} | {figure} |"
