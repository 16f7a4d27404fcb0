"""Buffers that merge identical lines and tracebacks of several ranks, so that each is shown only once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from horovod.runner.attribution.first_failure import find_exception
from horovod.runner.attribution.tracebacks import HEADER, shortened

# Seconds for which a line is held back, to merge it with identical lines from other ranks
DELAY = 0.5
# Maximum total size in bytes of the lines that are held back
MAX_HELD_BYTES = 1 << 20
GROUP_LIMIT = 512  # Maximum number of different lines that are held back

_Key = tuple[int, bytes]


@dataclass(eq=False)
class Group:
    """Output line, the ranks that have written it, and the time at which it will be shown."""

    stream: int
    line: bytes
    due: float
    ranks: set[int] = field(default_factory=set)


class Collapser:
    """Buffer that holds back lines for a short time and merges identical lines from different ranks.

    The lines of each rank stay in order, even across stdout and stderr. The buffer holds back a line for at most DELAY
    seconds. It releases the line earlier if all ranks have written it or if too many lines are held back.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        self._living = set(ranks)
        self._groups: list[Group] = []  # Lines that are held back, in display order
        self._by_line: dict[_Key, list[Group]] = {}
        self._last: dict[int, Group] = {}  # Maps each rank to the last of its lines that are held back
        self._held_bytes = 0

    def add(self, rank: int, stream: int, line: bytes, now: float) -> None:
        """Hold back a rank's line. Merge it with an identical line of the buffer if each rank's lines stay in order."""
        same = self._by_line.setdefault((stream, line), [])
        group = next((group for group in same if rank not in group.ranks and self._place(group, rank)), None)
        if group is None:
            group = Group(stream, line, now + DELAY)
            self._groups.append(group)
            same.append(group)
            self._held_bytes += len(line)
        group.ranks.add(rank)
        self._last[rank] = group

    def _place(self, group: Group, rank: int) -> bool:
        """Return True if the rank's line can be merged into a group of identical lines without reordering its output.

        If necessary, move the group behind the rank's previous line.
        """
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
        """Add a rank. From now on, the buffer also waits for identical lines from this rank."""
        self._living.add(rank)

    def leave(self, rank: int) -> None:
        """Remove a rank that has exited, so that the buffer stops waiting for identical lines from it."""
        self._living.discard(rank)

    def next_due(self) -> float | None:
        """Return when the caller must next call `take`, or None if no line is held back."""
        return min((group.due for group in self._groups), default=None)

    def take(self, now: float) -> list[Group]:
        """Return the lines to show now, in order.

        These are the lines whose delay has passed or that all ranks have written, plus all lines before them.
        """
        ready = (i for i, group in enumerate(self._groups, 1) if group.due <= now or self._living <= group.ranks)
        count = max(max(ready, default=0), len(self._groups) - GROUP_LIMIT)
        held = self._held_bytes - sum(len(group.line) for group in self._groups[:count])
        while held > MAX_HELD_BYTES:
            held -= len(self._groups[count].line)
            count += 1
        taken, self._groups = self._groups[:count], self._groups[count:]
        self._held_bytes = held
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
        """Return all lines that are held back, in order, and clear the buffer."""
        return self.take(float("inf"))


# Seconds for which a traceback is held, to merge it with identical tracebacks from other ranks.
TRACEBACK_DELAY = 1.0
# Seconds for which a traceback is held with `horovod.run`. The traceback is shortened if the rank exits in this time.
LONG_DELAY = 5.0
TRACEBACK_LIMIT = 1 << 16  # Maximum number of bytes of output that are held back for each rank

_HEADER = HEADER.encode()
_NUMBERS = re.compile(rb"\d+")  # Numbers that differ between ranks, such as process ids and addresses

Cut = Callable[[Sequence[bytes]], int]
Shown = tuple[list[int], bytes]  # Line to show, preceded by the ranks that wrote it


@dataclass
class _Pending:
    due: float
    lines: list[bytes] = field(default_factory=list)
    size: int = 0
    last: bool = False


class Farewells:
    """Buffer that holds back the tracebacks of all ranks for a short time, so that identical ones are shown only once.

    If a job fails, several ranks often write the same traceback. The buffer holds back a traceback and everything that
    the rank writes to stderr after it.

    Args:
        ranks: All ranks.
        cut: Function that returns how many lines to omit at the start of a traceback after which the rank exited, or
            None to omit no lines.
    """

    def __init__(self, ranks: Iterable[int], cut: Cut | None = None) -> None:
        self._living = set(ranks)
        self._cut = cut
        self._delay = TRACEBACK_DELAY if cut is None else LONG_DELAY
        self._pending: dict[int, _Pending] = {}

    def join(self, rank: int) -> None:
        """Add a rank that has started."""
        self._living.add(rank)

    def add(self, rank: int, lines: Sequence[bytes], now: float) -> list[bytes]:
        """Add lines from a rank's stderr.

        Hold back a traceback and everything after it, and return the lines before it.
        """
        held = self._pending.get(rank)
        if held is not None:
            return self._hold(rank, held, lines)
        start = next((i for i, line in enumerate(lines) if line.rstrip().endswith(_HEADER)), len(lines))
        if start == len(lines):
            return list(lines)
        held = self._pending[rank] = _Pending(now + self._delay)
        return [*lines[:start], *self._hold(rank, held, lines[start:])]

    def _hold(self, rank: int, pending: _Pending, lines: Sequence[bytes]) -> list[bytes]:
        pending.lines += lines
        pending.size += sum(map(len, lines))
        if pending.size <= TRACEBACK_LIMIT:
            return []
        return self._pending.pop(rank).lines

    def end(self, rank: int) -> None:
        """Record that the rank has exited. If a traceback of the rank is held back, it is the rank's last output."""
        self._living.discard(rank)
        if rank in self._pending:
            self._pending[rank].last = True

    def next_due(self) -> float | None:
        """Return when the caller must call `take` to get the next traceback, or None if none is held back.

        Once all ranks have exited, `take` returns all tracebacks, even before this time.
        """
        return min((held.due for held in self._pending.values()), default=None)

    def take(self, now: float) -> list[Shown]:
        """Return the lines to show now: tracebacks whose delay has passed, merged with identical ones of other ranks.

        Once all ranks have exited, return all tracebacks.
        """
        shown: list[Shown] = []
        for rank, held in list(self._pending.items()):
            if rank in self._pending and (held.due <= now or not self._living):
                key = _alike(held.lines)
                same = [other for other, its in self._pending.items() if _alike(its.lines) == key]
                shown += self._show({other: self._pending.pop(other) for other in same})
        return shown

    def _show(self, same: dict[int, _Pending]) -> list[Shown]:
        """Merge a traceback that several ranks wrote. Return its lines, each with the ranks that wrote it.

        If a line contains numbers that differ between ranks, each variant of the line is returned.
        """
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
    """Remove library frames from a traceback that only reports another rank's failure."""
    text = b"".join(lines).decode("utf-8", "surrogateescape")
    if not find_exception(text)[1]:
        return lines
    end = b"\n" if lines[-1].endswith(b"\n") else b""
    kept = shortened(text.removesuffix("\n").split("\n"))
    encoded = [line.encode("utf-8", "surrogateescape") + b"\n" for line in kept]
    return [*encoded[:-1], encoded[-1].removesuffix(b"\n") + end]


def _alike(lines: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return a key that is the same for tracebacks whose messages differ only in numbers."""
    return tuple(line if line.startswith(b" ") else _NUMBERS.sub(b"#", line) for line in lines)
