"""The order of an epoch: which record stands at which place. The same on all ranks, and of any number of them. Pure.

Records come in *blocks*, which are read whole. Blocks are put in another order in each epoch, and taken a few at a
time, a *window*, whose records are put in another order in turn: so a rank that goes through a run of places reads each
file's part once, and holds one window. How well records are mixed is how large a window is."""

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from horovod.common.elastic.order import permutation

Piece = tuple[int, int, list[int]]
"""Number of the window, number of the block, places of records in the block."""


class Order:
    """Of the records of one epoch. ``lengths``: of the blocks. ``mix``: blocks in a window."""

    def __init__(self, lengths: Sequence[int], shuffle: bool, seed: int, epoch: int, mix: int) -> None:
        self._shuffle, self._seed, self._epoch = shuffle, seed, epoch
        blocks = permutation(len(lengths), seed, epoch) if shuffle else range(len(lengths))
        self._windows = [tuple(blocks[begin : begin + mix]) for begin in range(0, len(lengths), mix)]
        # Where each block begins, in its window, and each window; at the end of each list, where it ends.
        self._starts = [[0, *itertools.accumulate(lengths[block] for block in window)] for window in self._windows]
        self._begins = [0, *itertools.accumulate(starts[-1] for starts in self._starts)]
        self._last: tuple[int, Any] = (-1, None)

    def __len__(self) -> int:
        return self._begins[-1]

    def pieces(self, begin: int, end: int) -> Iterator[Piece]:
        """The records at the places from ``begin`` up to before ``end``; in a window, those of a block together."""
        while begin < end:
            number = bisect.bisect_right(self._begins, begin) - 1
            first, stop = self._begins[number], min(end, self._begins[number + 1])
            places = self._inside(number, begin - first, stop - first)
            for index, inside in _by_block(places, self._starts[number]):
                yield number, self._windows[number][index], inside
            begin = stop

    def _inside(self, number: int, begin: int, end: int) -> list[int]:
        """Which records of a window come from its place ``begin`` up to before ``end``."""
        if not self._shuffle:
            return list(range(begin, end))
        last = self._last
        if last[0] != number:
            last = self._last = number, _mixed(self._starts[number][-1], [self._seed, self._epoch, number])
        places: list[int] = last[1][begin:end].tolist()
        return places


def _by_block(places: list[int], starts: list[int]) -> Iterable[tuple[int, list[int]]]:
    """Places in a window, as places in its blocks, by the block's index in it."""
    if len(starts) == 2:
        return [(0, places)]
    found: dict[int, list[int]] = {}
    for place in places:
        index = bisect.bisect_right(starts, place) - 1
        found.setdefault(index, []).append(place - starts[index])
    return found.items()


def _mixed(length: int, numbers: Sequence[int]) -> Any:
    """An array of the integers below ``length``. NumPy's RandomState gives the same on all machines and in all its
    versions (NEP 19), and is fifty times as fast as ``permutation``: a window may have a million records."""
    import numpy as np

    words = [part for number in numbers for part in (number & 0xFFFFFFFF, number >> 32 & 0xFFFFFFFF)]
    return np.random.RandomState(np.array(words, np.uint32)).permutation(length)
