"""Order of an epoch's records: equal on all ranks, and independent of their number. Pure.

Records come in *blocks*, which are read as a whole. Each epoch has a different order of blocks. They are visited in
*windows* of a few blocks, and the records of a window are shuffled. So a rank that goes through a run of places reads
each part of a file once, and holds one window in memory. Larger windows mix records better. Blocks of a *chain* stay in
sequence.
"""

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from horovod.common.elastic.order import permutation

Piece = tuple[int, int, list[int]]
"""Number of the window, number of the block, places of records in the block."""


class Order:
    """Order of the records of one epoch.

    Args:
        lengths: Number of records of each block.
        shuffle: True to shuffle.
        seed: Seed of the order.
        epoch: Number of the epoch.
        mix: Number of blocks per window.
        chains: Number of blocks of each chain; empty: every block is a chain.
    """

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
        # Start of each block within its window, and start of each window; each list ends with the end.
        self._starts = [[0, *itertools.accumulate(lengths[block] for block in window)] for window in self._windows]
        self._begins = [0, *itertools.accumulate(starts[-1] for starts in self._starts)]
        self._last: tuple[int, Any] = (-1, None)

    def __len__(self) -> int:
        return self._begins[-1]

    def window(self, number: int) -> tuple[int, ...]:
        """Return the blocks of a window."""
        return self._windows[number]

    def pieces(self, begin: int, end: int) -> Iterator[Piece]:
        """Yield the records at places ``begin`` to ``end`` (exclusive), grouped by block within a window."""
        while begin < end:
            number = bisect.bisect_right(self._begins, begin) - 1
            first, stop = self._begins[number], min(end, self._begins[number + 1])
            for index, inside in self._inside(number, begin - first, stop - first):
                yield number, self._windows[number][index], inside
            begin = stop

    def _inside(self, number: int, begin: int, end: int) -> Iterable[tuple[int, list[int]]]:
        """Return the records at places ``begin`` to ``end`` of a window, as (block's index in it, places)."""
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
    """Group an array of places by block. Blocks, and places within each, keep the order of their first occurrence."""
    import numpy as np

    of = np.searchsorted(starts, places, side="right") - 1
    indices, met = np.unique(of, return_index=True)
    for index in indices[np.argsort(met)].tolist():
        yield index, (places[of == index] - starts[index]).tolist()


def _mixed(length: int, numbers: Sequence[int]) -> Any:
    """Return a permutation of the integers below ``length`` as an array.

    NumPy's RandomState gives the same result on all machines and in all its versions (NEP 19). It is fifty times as
    fast as ``permutation``, which matters because a window may have a million records.
    """
    import numpy as np

    words = [part for number in numbers for part in (number & 0xFFFFFFFF, number >> 32 & 0xFFFFFFFF)]
    return np.random.RandomState(np.array(words, np.uint32)).permutation(length)
