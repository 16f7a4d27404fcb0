"""Merging of equal lines written by many ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

DELAY = 0.5  # s that a line is held for the same line of other ranks
HELD_LIMIT = 1 << 20  # maximum bytes of held lines
GROUP_LIMIT = 512  # maximum number of held lines

_Key = tuple[int, bytes]


@dataclass(eq=False)
class Group:
    """A line and the ranks that have written it."""

    stream: int
    line: bytes
    due: float
    ranks: set[int] = field(default_factory=set)


class Collapser:
    """Holds lines briefly and merges equal ones of different ranks. Pure: the time is an argument.

    The lines of each rank stay in order, over both streams. A line is held for at most DELAY s, and less when all ranks
    have written it or the limits are exceeded.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        self._living = set(ranks)
        self._groups: list[Group] = []  # in display order
        self._by_line: dict[_Key, list[Group]] = {}
        self._last: dict[int, Group] = {}  # last held line of each rank
        self._held = 0

    def add(self, rank: int, stream: int, line: bytes, now: float) -> None:
        """Hold a line of a rank, merged with the same line of others if the order allows that."""
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
        """Return True if the rank can join the group with its lines still in order; moves the group if needed."""
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
        """Add a rank, for whose lines those of others are held."""
        self._living.add(rank)

    def leave(self, rank: int) -> None:
        """Remove a rank that has ended, so that lines are not held for it."""
        self._living.discard(rank)

    def next_due(self) -> float | None:
        """Return when `take` must be called next, or None if no line is held."""
        return min((group.due for group in self._groups), default=None)

    def take(self, now: float) -> list[Group]:
        """Return the lines to be shown now, in order: those due or written by all ranks, and all before these.

        No rank can join a line that precedes one that all ranks have written.
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
