"""Which records of an epoch are left, and which of them a rank visits, whatever the number of ranks is and however
often it changes. Pure.

All ranks have the same order of all records, and know what is left of it as *intervals* of places. Each rank gets one
run of them, so that it reads its files one after another and hardly any that another rank reads as well; all go through
their runs at the same pace. So every rank knows what all have done, also one that is lost, and what is left are the
ends of the runs:

    places   0 1 2 3 4 5 | 6 7 8 9 10 11      2 ranks, after two records each:
             done-- 2 3 4 5  done-- 8 9 10 11    left (2, 6), (8, 12), for 3 ranks: 2 3 4 | 5 8 9 | 10 11

Ranks must take equally many steps: those whose run is a record shorter visit one twice.
"""

import itertools
from collections.abc import Iterable, Iterator

Intervals = tuple[tuple[int, int], ...]
"""(begin, end) pairs, rising, of which none is empty and none touches the next."""


def count(intervals: Intervals) -> int:
    """How many places they have."""
    return sum(end - begin for begin, end in intervals)


def section(intervals: Intervals, begin: int, end: int) -> Intervals:
    """Of their places, counted through, those from number ``begin`` up to before ``end``."""
    return tuple(_sections(intervals, [(begin, end)]))


def _sections(intervals: Intervals, numbers: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The same of several rising pairs of numbers, in one go: there may be thousands of both."""
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
    """Rising pieces as intervals."""
    made: list[tuple[int, int]] = []
    for begin, end in pieces:
        if made and made[-1][1] == begin:
            made[-1] = made[-1][0], end
        elif begin < end:
            made.append((begin, end))
    return tuple(made)


def run(left: Intervals, rank: int, ranks: int) -> Intervals:
    """What the rank visits of ``left``. Runs differ by a place at most."""
    places = count(left)
    return section(left, rank * places // ranks, (rank + 1) * places // ranks)


def steps(left: Intervals, ranks: int) -> int:
    """How many records each rank visits, a second one of some included."""
    return -(-count(left) // ranks)


def extra(left: Intervals, rank: int, ranks: int) -> int | None:
    """The place that the rank visits though it is not of its run, or not once only: at the end, where others have one
    more."""
    mine = run(left, rank, ranks)
    if count(mine) == steps(left, ranks):
        return None
    if mine:
        return mine[-1][1] - 1  # the records around it have just been read
    number = rank % count(left)
    return section(left, number, number + 1)[0][0]


def rest(left: Intervals, ranks: int, done: int) -> Intervals:
    """What is left when each rank has been through so many of its run."""
    places = count(left)
    edges = [rank * places // ranks for rank in range(ranks + 1)]
    ends = ((min(begin + done, end), end) for begin, end in itertools.pairwise(edges))
    return joined(_sections(left, ends))


def checked(left: Iterable[Iterable[int]], places: int) -> Intervals:
    """Intervals as a state has them, lists perhaps. Raises ValueError for what are none of ``places`` places."""
    try:
        made = tuple((int(begin), int(end)) for begin, end in left)
    except (TypeError, ValueError):
        raise ValueError(f"left is {left!r}, accepted are pairs of integers") from None
    edges = [edge for pair in made for edge in pair]
    if edges != sorted(set(edges)) or (edges and (edges[0] < 0 or edges[-1] > places)):
        raise ValueError(f"left is {left!r}, accepted are rising pairs of integers from 0 to {places}")
    return made
