"""Tracebacks on stderr: when a job fails, several ranks often write the same one, which is shown once.

A traceback, and what the rank writes after it, is held for a moment. Pure: the time is an argument.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from horovod.runner.attribution.first_failure import find_exception
from horovod.runner.attribution.tracebacks import HEADER, shortened

DELAY = 1.0  # s that a traceback is held for the same one of other ranks
LONG_DELAY = 5.0  # s that it is held for the end of its process, if that decides what is shown
HELD_LIMIT = 1 << 16  # maximum bytes held of one rank; more is shown at once

_HEADER = HEADER.encode()
_NUMBERS = re.compile(rb"\d+")  # in messages: ranks, processes, addresses

Cut = Callable[[Sequence[bytes]], int]
Shown = tuple[list[int], bytes]  # a line, and the ranks that have written it


@dataclass
class _Held:
    due: float
    lines: list[bytes] = field(default_factory=list)
    size: int = 0
    last: bool = False  # True if the rank has ended


class Farewells:
    """Held tracebacks of all ranks.

    Args:
        ranks: All ranks.
        cut: Returns how many lines to leave out at the front of the lines with which a rank has ended, because they are
            shown elsewhere; None leaves out nothing.
    """

    def __init__(self, ranks: Iterable[int], cut: Cut | None = None) -> None:
        self._living = set(ranks)
        self._cut = cut
        self._delay = DELAY if cut is None else LONG_DELAY
        self._held: dict[int, _Held] = {}

    def join(self, rank: int) -> None:
        """Add a rank that has started."""
        self._living.add(rank)

    def add(self, rank: int, lines: Sequence[bytes], now: float) -> list[bytes]:
        """Take lines of the rank's stderr, in order, and return those to be shown at once."""
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
        if held.size <= HELD_LIMIT:
            return []
        return self._held.pop(rank).lines

    def end(self, rank: int) -> None:
        """Record that the rank has ended."""
        self._living.discard(rank)
        if rank in self._held:
            self._held[rank].last = True

    def next_due(self) -> float | None:
        """Return when `take` must be called next, or None; lines may be due earlier if a rank ends."""
        return min((held.due for held in self._held.values()), default=None)

    def take(self, now: float) -> list[Shown]:
        """Return what to show now: tracebacks held long enough, and equal ones; all, once all ranks have ended."""
        shown: list[Shown] = []
        for rank, held in list(self._held.items()):
            if rank in self._held and (held.due <= now or not self._living):
                key = _alike(held.lines)
                same = [other for other, its in self._held.items() if _alike(its.lines) == key]
                shown += self._show({other: self._held.pop(other) for other in same})
        return shown

    def _show(self, same: dict[int, _Held]) -> list[Shown]:
        """Return the lines with all their ranks; a line that differs in a number is shown for each rank separately."""
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
    """Return the lines without library frames if the traceback is a victim's, which does not show the cause."""
    text = b"".join(lines).decode("utf-8", "surrogateescape")
    if not find_exception(text)[1]:
        return lines
    end = b"\n" if lines[-1].endswith(b"\n") else b""
    kept = shortened(text.removesuffix("\n").split("\n"))
    encoded = [line.encode("utf-8", "surrogateescape") + b"\n" for line in kept]
    return [*encoded[:-1], encoded[-1].removesuffix(b"\n") + end]


def _alike(lines: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return a key that is equal for tracebacks that differ only in numbers in their messages."""
    return tuple(line if line.startswith(b" ") else _NUMBERS.sub(b"#", line) for line in lines)
