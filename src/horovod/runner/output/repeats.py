"""Merging of equal lines that many ranks write, and of equal tracebacks if a job fails."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from horovod.runner.attribution.first_failure import find_exception
from horovod.runner.attribution.tracebacks import HEADER, shortened

# Merging of equal lines that many ranks write.

DELAY = 0.5  # Seconds for which a line is held to merge it with the same line of other ranks.
HELD_LIMIT = 1 << 20  # Maximum total bytes of held lines.
GROUP_LIMIT = 512  # Maximum number of held lines.

_Key = tuple[int, bytes]


@dataclass(eq=False)
class Group:
    """Line of output, and the ranks that have written it."""

    stream: int
    line: bytes
    due: float
    ranks: set[int] = field(default_factory=set)


class Collapser:
    """Buffer that holds lines for a short time and merges equal lines of different ranks.

    The lines of each rank stay in order, across both streams. A line is held for at most DELAY seconds. It is released
    earlier if all ranks have written it, or if the limits are exceeded.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        self._living = set(ranks)
        self._groups: list[Group] = []  # In the order in which they will be shown.
        self._by_line: dict[_Key, list[Group]] = {}
        self._last: dict[int, Group] = {}  # Last held line of each rank.
        self._held = 0

    def add(self, rank: int, stream: int, line: bytes, now: float) -> None:
        """Hold a line of a rank. Merges it with the same line of other ranks if the order of lines allows it."""
        same = self._by_line.setdefault((stream, line), [])
        group = next((group for group in same if rank not in group.ranks and self._place(group, rank)), None)
        if group is None:
            group = Group(stream, line, now + DELAY)
            self._groups.append(group)
            same.append(group)
            self._held += len(line)
        group.ranks.add(rank)
        self._last[rank] = group

    def _place(self, group: Group, rank: int) -> bool:
        """Return True if the rank can join the group without reordering its lines. Moves the group if needed."""
        last = self._last.get(rank)
        if last is None:
            return True
        ours, its = self._groups.index(group), self._groups.index(last)
        if ours > its:
            return True
        if not all(group.ranks.isdisjoint(other.ranks) for other in self._groups[ours + 1 : its + 1]):
            return False
        self._groups.insert(its, self._groups.pop(ours))
        return True

    def join(self, rank: int) -> None:
        """Add a rank. From now on, lines of other ranks are held until it writes them too."""
        self._living.add(rank)

    def leave(self, rank: int) -> None:
        """Remove a rank that has ended, so that lines are no longer held for it."""
        self._living.discard(rank)

    def next_due(self) -> float | None:
        """Return the time at which `take` must be called next, or None if no line is held."""
        return min((group.due for group in self._groups), default=None)

    def take(self, now: float) -> list[Group]:
        """Return the lines to show now, in order: those that are due or complete, and all lines before them.

        A line is complete once all ranks have written it. No rank can join a line before such a line.
        """
        ready = (i for i, group in enumerate(self._groups, 1) if group.due <= now or self._living <= group.ranks)
        count = max(max(ready, default=0), len(self._groups) - GROUP_LIMIT)
        held = self._held - sum(len(group.line) for group in self._groups[:count])
        while held > HELD_LIMIT:
            held -= len(self._groups[count].line)
            count += 1
        taken, self._groups = self._groups[:count], self._groups[count:]
        self._held = held
        for group in taken:
            self._forget(group)
        return taken

    def _forget(self, group: Group) -> None:
        key = (group.stream, group.line)
        same = self._by_line[key]
        same.remove(group)
        if not same:
            del self._by_line[key]
        for rank in group.ranks:
            if self._last.get(rank) is group:
                del self._last[rank]

    def take_all(self) -> list[Group]:
        """Return all held lines, in order."""
        return self.take(float("inf"))


# Tracebacks on stderr. If a job fails, several ranks often write the same traceback; it is shown once.
#
# A traceback, and what the rank writes after it, is held for a short time.

TRACEBACK_DELAY = 1.0  # Seconds for which a traceback is held to merge it with equal ones of other ranks.
LONG_DELAY = 5.0  # Seconds to wait for the end of the process, if that decides what is shown.
TRACEBACK_LIMIT = 1 << 16  # Maximum bytes held of one rank. More output is shown at once.

_HEADER = HEADER.encode()
_NUMBERS = re.compile(rb"\d+")  # numbers in messages: ranks, processes, addresses

Cut = Callable[[Sequence[bytes]], int]
Shown = tuple[list[int], bytes]  # ranks that have written a line, and the line


@dataclass
class _Held:
    due: float
    lines: list[bytes] = field(default_factory=list)
    size: int = 0
    last: bool = False  # True once the rank has ended


class Farewells:
    """Buffer that holds the tracebacks of all ranks.

    Args:
        ranks: All ranks.
        cut: Function that returns how many of the first lines to omit when a rank has ended, because they are shown
            elsewhere. None omits no lines.
    """

    def __init__(self, ranks: Iterable[int], cut: Cut | None = None) -> None:
        self._living = set(ranks)
        self._cut = cut
        self._delay = TRACEBACK_DELAY if cut is None else LONG_DELAY
        self._held: dict[int, _Held] = {}

    def join(self, rank: int) -> None:
        """Add a rank that has started."""
        self._living.add(rank)

    def add(self, rank: int, lines: Sequence[bytes], now: float) -> list[bytes]:
        """Add lines of the rank's stderr, in order. Returns the lines to show at once."""
        held = self._held.get(rank)
        if held is not None:
            return self._hold(rank, held, lines)
        start = next((i for i, line in enumerate(lines) if line.rstrip().endswith(_HEADER)), len(lines))
        if start == len(lines):
            return list(lines)
        held = self._held[rank] = _Held(now + self._delay)
        return [*lines[:start], *self._hold(rank, held, lines[start:])]

    def _hold(self, rank: int, held: _Held, lines: Sequence[bytes]) -> list[bytes]:
        held.lines += lines
        held.size += sum(map(len, lines))
        if held.size <= TRACEBACK_LIMIT:
            return []
        return self._held.pop(rank).lines

    def end(self, rank: int) -> None:
        """Record that the rank has ended."""
        self._living.discard(rank)
        if rank in self._held:
            self._held[rank].last = True

    def next_due(self) -> float | None:
        """Return the time at which `take` must be called next, or None. An ended rank can make lines due earlier."""
        return min((held.due for held in self._held.values()), default=None)

    def take(self, now: float) -> list[Shown]:
        """Return the lines to show now: tracebacks that are due, and equal ones.

        Once all ranks have ended, return all.
        """
        shown: list[Shown] = []
        for rank, held in list(self._held.items()):
            if rank in self._held and (held.due <= now or not self._living):
                key = _alike(held.lines)
                same = [other for other, its in self._held.items() if _alike(its.lines) == key]
                shown += self._show({other: self._held.pop(other) for other in same})
        return shown

    def _show(self, same: dict[int, _Held]) -> list[Shown]:
        """Return the lines with all their ranks. If a line contains different numbers, each version is shown."""
        first = next(iter(same.values())).lines
        ended = any(held.last for held in same.values())
        cut = self._cut(first) if self._cut is not None and ended else 0
        shown: list[Shown] = []
        texts = {rank: held.lines[cut:] if cut else _without_frames(held.lines) for rank, held in same.items()}
        for place in range(len(next(iter(texts.values())))):
            lines: dict[bytes, list[int]] = {}
            for rank, text in texts.items():
                lines.setdefault(text[place], []).append(rank)
            shown += [(ranks, line) for line, ranks in lines.items()]
        return shown


def _without_frames(lines: list[bytes]) -> list[bytes]:
    """Return the lines without library frames if the traceback is a victim's, because it does not show the cause."""
    text = b"".join(lines).decode("utf-8", "surrogateescape")
    if not find_exception(text)[1]:
        return lines
    end = b"\n" if lines[-1].endswith(b"\n") else b""
    kept = shortened(text.removesuffix("\n").split("\n"))
    encoded = [line.encode("utf-8", "surrogateescape") + b"\n" for line in kept]
    return [*encoded[:-1], encoded[-1].removesuffix(b"\n") + end]


def _alike(lines: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return a key that is equal for tracebacks whose messages differ only in numbers."""
    return tuple(line if line.startswith(b" ") else _NUMBERS.sub(b"#", line) for line in lines)
