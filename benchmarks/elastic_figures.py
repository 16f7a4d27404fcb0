"""What workers of elastic.py have written down, and the figures that follow from it. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from report import quantile

_CHAOS = re.compile(r"chaos: (\d+) events? \((.*)\), (\d+) detected, (\d+) recovered from")
_RECOVERED = re.compile(r"chaos: recovered after p50 ([\d.]+) s, p99 ([\d.]+) s, at most ([\d.]+) s")


@dataclass(frozen=True)
class Line:
    """`at`: s of the machine's monotonic clock, which all its processes share."""

    at: float
    pid: int
    what: str  # begins: step, rank, size. step: its number, size. block: its number, median s. ends: nothing
    words: tuple[str, ...] = ()

    def number(self, place: int) -> int:
        return int(self.words[place])


def parse(pid: int, text: str) -> list[Line]:
    """Lines of one worker. The last one is left out where it has not come to its end: its process was killed."""
    found = []
    for line in text.split("\n")[:-1]:
        at, what, *words = line.split()
        found.append(Line(float(at), pid, what, tuple(words)))
    return found


def members(lines: Iterable[Line], living: Collection[int]) -> dict[int, tuple[int, int]]:
    """By pid: rank and size when it began last, of workers that live and have begun."""
    ordered = sorted(lines, key=lambda line: line.at)
    return {
        line.pid: (line.number(1), line.number(2)) for line in ordered if line.what == "begins" and line.pid in living
    }


def first_step_after(lines: Iterable[Line], pid: int, since: float, size: int | None = None) -> Line | None:
    """The first step that a worker finished after it had begun anew after `since` (with so many ranks)."""
    begun = False
    for line in sorted((line for line in lines if line.pid == pid and line.at > since), key=lambda line: line.at):
        if line.what == "begins":
            begun = size is None or line.number(2) == size
        elif line.what == "step" and begun:
            return line
    return None


def last_step_before(lines: Iterable[Line], pid: int, until: float) -> Line | None:
    steps = [line for line in lines if line.pid == pid and line.what == "step" and line.at <= until]
    return max(steps, key=lambda line: line.at) if steps else None


def recovery(lines: Sequence[Line], pids: Collection[int], at: float) -> float | None:
    """Seconds from `at` until the last of these has finished its first step in the new membership; None: not yet."""
    firsts = [first_step_after(lines, pid, at) for pid in pids]
    return max(line.at for line in firsts if line) - at if firsts and all(firsts) else None


def lost(lines: Sequence[Line], pids: Collection[int], at: float) -> int:
    """How many finished steps were done again, counted on the worker (of a job that began before) that lost most: the
    highest number that anybody had finished against the first that comes afterwards."""
    firsts = [first for pid in pids if (first := first_step_after(lines, pid, at))]
    began = min(first.at for first in firsts)
    done = [line.number(0) for line in lines if line.what == "step" and line.at < began]
    return max(0, max(done) - min(first.number(0) for first in firsts) + 1)


def pause(lines: Sequence[Line], pids: Collection[int], since: float, size: int) -> float | None:
    """The longest time without a finished step on any of these while the ranks became `size`; None: not yet."""
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
    """As a cell: median, 99th percentile, the longest. With less than 100 values the second is the last."""
    if not values:
        return "-"
    return f"p50 {seconds(quantile(values, 0.5))}, p99 {seconds(quantile(values, 0.99))}, max {seconds(max(values))}"


def row(what: str, figure: str, goal: str) -> str:
    return f"| {what} | {figure} | {goal} |"


def ratio_of_turns(blocks: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Of (fixed, elastic) step times in turns: median ratio, and those at 10 and 90 percent."""
    ratios = [elastic / fixed for fixed, elastic in blocks]
    return quantile(ratios, 0.5), quantile(ratios, 0.1), quantile(ratios, 0.9)


@dataclass(frozen=True)
class Chaos:
    events: int
    kinds: str
    detected: int
    recovered: int
    p50: float | None = None  # s, of recoveries
    p99: float | None = None
    longest: float | None = None


def chaos_report(text: str) -> Chaos | None:
    """Out of what the launcher has written; None: it has written no report."""
    found, after = _CHAOS.search(text), _RECOVERED.search(text)
    if found is None:
        return None
    times = [float(word) for word in after.groups()] if after else [None] * 3
    return Chaos(int(found[1]), found[2], int(found[3]), int(found[4]), *times)
