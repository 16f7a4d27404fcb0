"""Record order of an epoch, and how records are split among ranks.

The order is equal on all ranks, and does not depend on the number of ranks.

Records are grouped into *blocks*, which are read as a whole. Each epoch has a different order of blocks. A few
consecutive blocks form a *window*, whose records are shuffled. A record's index in the resulting order is its *place*.
A rank that visits consecutive places reads each part of a file once, and keeps one window in memory. Larger windows mix
records better. The blocks of a *chain* stay in sequence.

All ranks know which records remain, as *intervals* of places. The remaining places are divided into one contiguous
*run* per rank. So a rank reads its files sequentially and shares hardly any file with other ranks. All ranks visit
their runs at the same pace. Therefore every rank knows which records all ranks have visited, including lost ranks. If
the number of ranks changes, the ends of the runs remain::

    places   0 1 2 3 4 5 | 6 7 8 9 10 11      2 ranks, after two records each:
             done-- 2 3 4 5  done-- 8 9 10 11    left (2, 6), (8, 12), for 3 ranks: 2 3 4 | 5 8 9 | 10 11

Ranks must take equally many steps, so a rank whose run is one record shorter visits one record twice.
"""

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from horovod.common.elastic.order import permutation

Piece = tuple[int, int, list[int]]
"""Number of the window, number of the block, and indices of records within the block."""


class Order:
    """Order of the records of one epoch.

    A source consists of blocks of records. A window is a group of blocks whose records are shuffled together. A chain
    is a run of blocks that can only be read one after another.

    Args:
        lengths: Number of records of each block.
        shuffle: True to shuffle the blocks, and the records of each window.
        seed: Seed of the order.
        epoch: Number of the epoch.
        mix: Number of blocks per window.
        chains: Number of blocks in each chain. Empty if blocks are independent.
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
        # Offsets of records: ``_starts`` holds the start of each block within its window, and ``_begins`` holds the
        # start of each window in the epoch. Each list ends with the total number of records.
        self._starts = [[0, *itertools.accumulate(lengths[block] for block in window)] for window in self._windows]
        self._begins = [0, *itertools.accumulate(starts[-1] for starts in self._starts)]
        self._last: tuple[int, Any] = (-1, None)

    def __len__(self) -> int:
        return self._begins[-1]

    def window(self, number: int) -> tuple[int, ...]:
        """Return the numbers of the blocks in a window."""
        return self._windows[number]

    def pieces(self, begin: int, end: int) -> Iterator[Piece]:
        """Yield the records at positions ``begin`` to ``end`` (exclusive), grouped by window and block."""
        while begin < end:
            number = bisect.bisect_right(self._begins, begin) - 1
            first, stop = self._begins[number], min(end, self._begins[number + 1])
            for index, inside in self._inside(number, begin - first, stop - first):
                yield number, self._windows[number][index], inside
            begin = stop

    def _inside(self, number: int, begin: int, end: int) -> Iterable[tuple[int, list[int]]]:
        """Return the records at positions ``begin`` to ``end`` of a window, grouped by block.

        The result consists of (index of the block in the window, indices of records in the block) pairs.
        """
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
    """Group an array of positions by block, keeping the order of first occurrence."""
    import numpy as np

    of = np.searchsorted(starts, places, side="right") - 1
    indices, met = np.unique(of, return_index=True)
    for index in indices[np.argsort(met)].tolist():
        yield index, (places[of == index] - starts[index]).tolist()


def _mixed(length: int, numbers: Sequence[int]) -> Any:
    """Return a permutation of the integers below ``length`` as an array.

    NumPy's RandomState gives the same result on all machines and in all its versions (NEP 19). RandomState is fifty
    times faster than ``permutation``, which matters because a window can have a million records.
    """
    import numpy as np

    words = [part for number in numbers for part in (number & 0xFFFFFFFF, number >> 32 & 0xFFFFFFFF)]
    return np.random.RandomState(np.array(words, np.uint32)).permutation(length)


Intervals = tuple[tuple[int, int], ...]
"""Intervals of places as (begin, end) pairs, in ascending order. They are not empty and not adjacent."""


def count(intervals: Intervals) -> int:
    """Return the total length of the intervals."""
    return sum(end - begin for begin, end in intervals)


def section(intervals: Intervals, begin: int, end: int) -> Intervals:
    """Return those integers in the intervals whose indices are ``begin`` to ``end`` - 1, again as intervals."""
    return tuple(_sections(intervals, [(begin, end)]))


def _sections(intervals: Intervals, numbers: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the ``section`` of the intervals for each of several ascending ranges of indices.

    All sections are computed in a single pass, because there can be thousands of ranges and of intervals.
    """
    passed = index = 0
    for begin, end in numbers:
        while begin < end and index < len(intervals):
            first, last = intervals[index]
            if begin < passed + last - first:
                stop = min(end, passed + last - first)
                yield first + begin - passed, first + stop - passed
                begin = stop
            if begin >= passed + last - first:
                passed += last - first
                index += 1


def joined(pieces: Iterable[tuple[int, int]]) -> Intervals:
    """Merge adjacent intervals. The intervals must be in ascending order."""
    made: list[tuple[int, int]] = []
    for begin, end in pieces:
        if made and made[-1][1] == begin:
            made[-1] = made[-1][0], end
        elif begin < end:
            made.append((begin, end))
    return tuple(made)


def run(remaining: Intervals, rank: int, ranks: int) -> Intervals:
    """Return the positions that a rank visits, which are a contiguous part of the remaining positions.

    The numbers of positions of the ranks differ by at most one.
    """
    places = count(remaining)
    return section(remaining, rank * places // ranks, (rank + 1) * places // ranks)


def steps(remaining: Intervals, ranks: int) -> int:
    """Return the number of records that each rank still visits in this epoch.

    The number is equal on all ranks, because it includes repeated records (see ``extra``).
    """
    return -(-count(remaining) // ranks)


def extra(remaining: Intervals, rank: int, ranks: int) -> int | None:
    """Return the position that a rank visits twice because its part is shorter than others', or None."""
    mine = run(remaining, rank, ranks)
    if count(mine) == steps(remaining, ranks):
        return None
    if mine:
        return mine[-1][1] - 1  # repeat the last record, whose block the rank has just read
    number = rank % count(remaining)
    return section(remaining, number, number + 1)[0][0]


def rest(remaining: Intervals, ranks: int, completed: int) -> Intervals:
    """Return the positions that remain once each rank has visited its first ``completed`` positions (see ``run``)."""
    places = count(remaining)
    edges = [rank * places // ranks for rank in range(ranks + 1)]
    ends = ((min(begin + completed, end), end) for begin, end in itertools.pairwise(edges))
    return joined(_sections(remaining, ends))


def checked(remaining: Iterable[Iterable[int]], places: int) -> Intervals:
    """Validate intervals from a saved state, converting lists to tuples. Raises ValueError if invalid."""
    try:
        made = tuple((int(begin), int(end)) for begin, end in remaining)
    except (TypeError, ValueError):
        raise ValueError(f"left must be pairs of integers, got {remaining!r}") from None
    edges = [edge for pair in made for edge in pair]
    if edges != sorted(set(edges)) or (edges and (edges[0] < 0 or edges[-1] > places)):
        raise ValueError(f"left must be increasing pairs of integers from 0 to {places}, got {remaining!r}")
    return made
