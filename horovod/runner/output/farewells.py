"""Tracebacks on stderr, of which several ranks often write the same when a job fails: it is shown once.

A traceback, with what the rank writes after it, is held for a moment. Pure: the clock is an argument.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from horovod.runner.verdict.tracebacks import HEADER, shortened
from horovod.runner.verdict.verdict import find_exception

DELAY = 1.0  # s that a traceback is held for the same of other ranks
LONG_DELAY = 5.0  # s that it is held for the end of its process, where only that tells what to show
HELD_LIMIT = 1 << 16  # bytes held of one rank; more is shown at once

_HEADER = HEADER.encode()
_NUMBERS = re.compile(rb"\d+")  # in messages: ranks, processes, addresses

Cut = Callable[[Sequence[bytes]], int]
Shown = tuple[list[int], bytes]  # a line, and the ranks that have written it


@dataclass
class _Held:
    due: float
    lines: list[bytes] = field(default_factory=list)
    size: int = 0
    last: bool = False  # the rank has ended


class Farewells:
    """Takes the lines of stderr of all ranks, in order.

    `cut` says of the lines with which a rank has ended how many to leave out at the front, because they are told
    elsewhere; None: nothing is.
    """

    def __init__(self, ranks: Iterable[int], cut: Cut | None = None) -> None:
        self._living = set(ranks)
        self._cut = cut
        self._delay = DELAY if cut is None else LONG_DELAY
        self._held: dict[int, _Held] = {}

    def join(self, rank: int) -> None:
        """One more."""
        self._living.add(rank)

    def add(self, rank: int, lines: Sequence[bytes], now: float) -> list[bytes]:
        """What of the rank's lines is to be shown at once."""
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
        """The rank has ended, and nothing more comes of it."""
        self._living.discard(rank)
        if rank in self._held:
            self._held[rank].last = True

    def next_due(self) -> float | None:
        """When `take` has something to give; it may have before, when a rank has ended."""
        return min((held.due for held in self._held.values()), default=None)

    def take(self, now: float) -> list[Shown]:
        """What is to be shown now: what has been held long enough, with what is like it; all, once all have ended."""
        shown: list[Shown] = []
        for rank, held in list(self._held.items()):
            if rank in self._held and (held.due <= now or not self._living):
                key = _alike(held.lines)
                same = [other for other, its in self._held.items() if _alike(its.lines) == key]
                shown += self._show({other: self._held.pop(other) for other in same})
        return shown

    def _show(self, same: dict[int, _Held]) -> list[Shown]:
        """Line by line, with all ranks; where they differ, by a number in a message, each for itself."""
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
    """The lines without frames of libraries where a traceback is that of a victim, which says nothing of the cause."""
    text = b"".join(lines).decode("utf-8", "surrogateescape")
    if not find_exception(text)[1]:
        return lines
    end = b"\n" if lines[-1].endswith(b"\n") else b""
    kept = shortened(text.removesuffix("\n").split("\n"))
    encoded = [line.encode("utf-8", "surrogateescape") + b"\n" for line in kept]
    return [*encoded[:-1], encoded[-1].removesuffix(b"\n") + end]


def _alike(lines: Sequence[bytes]) -> tuple[bytes, ...]:
    """Equal for tracebacks that differ in nothing but numbers in messages."""
    return tuple(line if line.startswith(b" ") else _NUMBERS.sub(b"#", line) for line in lines)
