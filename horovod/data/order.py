"""The order of an epoch: which record stands at which place. The same on all ranks, and of any number of them. Pure.

Records come in *blocks*, which are read whole. Blocks are put in another order in each epoch, and taken a few at a
time, a *window*, whose records are put in another order in turn: so a rank that goes through a run of places reads each
file's part once, and holds one window. How well records are mixed is how large a window is. Blocks of a *chain* stay
one after the other."""

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from horovod.common.elastic.order import permutation

Piece = tuple[int, int, list[int]]
"""Number of the window, number of the block, places of records in the block."""


class Order:
    """Of the records of one epoch. ``lengths``: of the blocks. ``mix``: blocks in a window. ``chains``: how many blocks
    each has; none: one."""

    def __init__(
        self, lengths: Sequence[int], shuffle: bool, seed: int, epoch: int, mix: int, chains: Sequence[int] = ()
    ) -> None:
        self._shuffle, self._seed, self._epoch = shuffle, seed, epoch
        blocks: Sequence[int] = range(len(lengths))
        if shuffle and chains:
            runs = [blocks[end - count : end] for count, end in zip(chains, itertools.accumulate(chains), strict=True)]
            blocks = [block for chain in permutation(len(runs), seed, epoch) for block in runs[chain]]
        elif shuffle:
            blocks = permutation(len(lengths), seed, epoch)
        self._windows = [tuple(blocks[begin : begin + mix]) for begin in range(0, len(lengths), mix)]
        # Where each block begins, in its window, and each window; at the end of each list, where it ends.
        self._starts = [[0, *itertools.accumulate(lengths[block] for block in window)] for window in self._windows]
        self._begins = [0, *itertools.accumulate(starts[-1] for starts in self._starts)]
        self._last: tuple[int, Any] = (-1, None)

    def __len__(self) -> int:
        return self._begins[-1]

    def window(self, number: int) -> tuple[int, ...]:
        """The blocks of the window of this number."""
        return self._windows[number]

    def pieces(self, begin: int, end: int) -> Iterator[Piece]:
        """The records at the places from ``begin`` up to before ``end``; in a window, those of a block together."""
        while begin < end:
            number = bisect.bisect_right(self._begins, begin) - 1
            first, stop = self._begins[number], min(end, self._begins[number + 1])
            for index, inside in self._inside(number, begin - first, stop - first):
                yield number, self._windows[number][index], inside
            begin = stop

    def _inside(self, number: int, begin: int, end: int) -> Iterable[tuple[int, list[int]]]:
        """Which records of a window come from its place ``begin`` up to before ``end``: index of the block in the
        window, places in it."""
        starts = self._starts[number]
        if not self._shuffle:
            return _in_a_row(begin, end, starts)
        last = self._last
        if last[0] != number:
            last = self._last = number, _mixed(starts[-1], [self._seed, self._epoch, number])
        return _by_block(last[1][begin:end], starts)


def _in_a_row(begin: int, end: int, starts: list[int]) -> Iterator[tuple[int, list[int]]]:
    for index, (first, stop) in enumerate(itertools.pairwise(starts)):
        if begin < stop and first < end:
            yield index, list(range(max(begin, first) - first, min(end, stop) - first))


def _by_block(places: Any, starts: list[int]) -> Iterator[tuple[int, list[int]]]:
    """``places``: an array. Blocks in the order in which they are met, and so places in each."""
    import numpy as np

    of = np.searchsorted(starts, places, side="right") - 1
    indices, met = np.unique(of, return_index=True)
    for index in indices[np.argsort(met)].tolist():
        yield index, (places[of == index] - starts[index]).tolist()


def _mixed(length: int, numbers: Sequence[int]) -> Any:
    """An array of the integers below ``length``. NumPy's RandomState gives the same on all machines and in all its
    versions (NEP 19), and is fifty times as fast as ``permutation``: a window may have a million records."""
    import numpy as np

    words = [part for number in numbers for part in (number & 0xFFFFFFFF, number >> 32 & 0xFFFFFFFF)]
    return np.random.RandomState(np.array(words, np.uint32)).permutation(length)
