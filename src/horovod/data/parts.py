"""Division of an epoch's records among ranks, for any number of ranks and any changes of it. Pure.

All ranks have the same order of all records, and know which are left as *intervals* of places. Each rank gets one
contiguous run of them, so that it reads its files sequentially and shares hardly any with other ranks. All ranks go
through their runs at the same pace. So every rank knows what all ranks have done, including a lost one, and what is
left are the ends of the runs:

    places   0 1 2 3 4 5 | 6 7 8 9 10 11      2 ranks, after two records each:
             done-- 2 3 4 5  done-- 8 9 10 11    left (2, 6), (8, 12), for 3 ranks: 2 3 4 | 5 8 9 | 10 11

Ranks must make equally many steps, so ranks whose run is one record shorter visit one record twice.
"""

import itertools
from collections.abc import Iterable, Iterator

Intervals = tuple[tuple[int, int], ...]
"""(begin, end) pairs in ascending order, not empty and not adjacent."""


def count(intervals: Intervals) -> int:
    """Return the number of places."""
    return sum(end - begin for begin, end in intervals)


def section(intervals: Intervals, begin: int, end: int) -> Intervals:
    """Return the places with numbers ``begin`` to ``end`` (exclusive), counted through all intervals."""
    return tuple(_sections(intervals, [(begin, end)]))


def _sections(intervals: Intervals, numbers: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the sections for several ascending ranges of numbers.

    Works in one pass, because there may be thousands of intervals and ranges.
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
    """Return ascending pieces as intervals, joining adjacent ones."""
    made: list[tuple[int, int]] = []
    for begin, end in pieces:
        if made and made[-1][1] == begin:
            made[-1] = made[-1][0], end
        elif begin < end:
            made.append((begin, end))
    return tuple(made)


def run(left: Intervals, rank: int, ranks: int) -> Intervals:
    """Return the places of ``left`` that the rank visits. The lengths of runs differ by at most one."""
    places = count(left)
    return section(left, rank * places // ranks, (rank + 1) * places // ranks)


def steps(left: Intervals, ranks: int) -> int:
    """Return how many records each rank visits, including repeated ones."""
    return -(-count(left) // ranks)


def extra(left: Intervals, rank: int, ranks: int) -> int | None:
    """Return the extra place that a rank with a shorter run visits at the end; None if it has none."""
    mine = run(left, rank, ranks)
    if count(mine) == steps(left, ranks):
        return None
    if mine:
        return mine[-1][1] - 1  # the records around it have just been read
    number = rank % count(left)
    return section(left, number, number + 1)[0][0]


def rest(left: Intervals, ranks: int, done: int) -> Intervals:
    """Return what is left when each rank has visited ``done`` records of its run."""
    places = count(left)
    edges = [rank * places // ranks for rank in range(ranks + 1)]
    ends = ((min(begin + done, end), end) for begin, end in itertools.pairwise(edges))
    return joined(_sections(left, ends))


def checked(left: Iterable[Iterable[int]], places: int) -> Intervals:
    """Return intervals from a saved state, possibly given as lists. Raises ValueError if they are invalid."""
    try:
        made = tuple((int(begin), int(end)) for begin, end in left)
    except (TypeError, ValueError):
        raise ValueError(f"left must be pairs of integers, got {left!r}") from None
    edges = [edge for pair in made for edge in pair]
    if edges != sorted(set(edges)) or (edges and (edges[0] < 0 or edges[-1] > places)):
        raise ValueError(f"left must be increasing pairs of integers from 0 to {places}, got {left!r}")
    return made
