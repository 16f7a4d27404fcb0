"""Division of a list of arrays, treated as one long vector, into contiguous parts."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple


def slices(total: int, parts: int) -> list[tuple[int, int]]:
    """Divide ``total`` elements into ``parts`` parts whose sizes differ by at most 1. Return each (start, stop)."""
    bounds = [total * i // parts for i in range(parts + 1)]
    return list(itertools.pairwise(bounds))


class Segment(NamedTuple):
    """Elements ``start`` to ``stop`` of array ``index``, which begin at ``offset`` within a part of the vector."""

    index: int
    start: int
    stop: int
    offset: int


def segments(sizes: Sequence[int], start: int, stop: int) -> list[Segment]:
    """Return the segments of the arrays that form elements ``start`` to ``stop`` of the vector, in order."""
    found = []
    begin = 0
    for index, size in enumerate(sizes):
        low, high = max(start, begin), min(stop, begin + size)
        if low < high:
            found.append(Segment(index, low - begin, high - begin, low - start))
        begin += size
    return found
