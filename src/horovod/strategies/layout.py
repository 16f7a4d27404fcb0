"""Division of a list of arrays, seen as one long vector, into contiguous parts. Pure."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple


def slices(total: int, parts: int) -> list[tuple[int, int]]:
    """Return the (start, stop) of ``parts`` contiguous parts of ``total`` elements, whose sizes differ by at most 1."""
    bounds = [total * i // parts for i in range(parts + 1)]
    return list(itertools.pairwise(bounds))


class Segment(NamedTuple):
    """Elements ``start`` to ``stop`` of array ``index``; they begin at ``offset`` in the part of the vector."""

    index: int
    start: int
    stop: int
    offset: int


def segments(sizes: Sequence[int], start: int, stop: int) -> list[Segment]:
    """Return the segments of arrays of these sizes that form elements ``start`` to ``stop`` of the vector, in order."""
    found = []
    begin = 0
    for index, size in enumerate(sizes):
        low, high = max(start, begin), min(stop, begin + size)
        if low < high:
            found.append(Segment(index, low - begin, high - begin, low - start))
        begin += size
    return found
