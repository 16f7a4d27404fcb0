"""Buckets of parameters, and the segments of parameters that each rank owns. Pure: no tensors, no communication."""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

BUCKET_BYTES = 16 * 1024 * 1024


class Item(NamedTuple):
    """A parameter: its group, dtype and device as one key, its number of elements, and the bytes of an element."""

    key: Hashable
    size: int
    width: int


class Segment(NamedTuple):
    """Elements ``start`` to ``stop`` of a parameter, which begin at ``offset`` in the rank's shard."""

    index: int
    start: int
    stop: int
    offset: int


class Layout(NamedTuple):
    """Parameters of a bucket by index, the position of each one, and the number of elements of one rank's shard."""

    indices: list[int]
    offsets: list[int]
    shard: int


def make_layouts(items: Sequence[Item], ranks: int, bucket_bytes: int = BUCKET_BYTES) -> list[Layout]:
    """Divide parameters into buckets of one key each, which the ranks share equally.

    A bucket is closed when it reaches ``bucket_bytes``. Its size is rounded up to a multiple of ``ranks``.
    """
    closed: list[list[int]] = []
    filling: dict[Hashable, list[int]] = {}
    filled: Counter[Hashable] = Counter()
    for index, item in enumerate(items):
        filling.setdefault(item.key, []).append(index)
        filled[item.key] += item.size * item.width
        if filled[item.key] >= bucket_bytes:
            closed.append(filling.pop(item.key))
            del filled[item.key]
    layouts = []
    for bucket in sorted([*closed, *filling.values()]):
        offsets, total = [], 0
        for index in bucket:
            offsets.append(total)
            total += items[index].size
        layouts.append(Layout(bucket, offsets, -(-total // ranks)))
    return layouts


def segments(layout: Layout, sizes: Sequence[int], rank: int) -> list[Segment]:
    """Return the segments of a bucket that ``rank`` owns, without padding and empty ones."""
    low, high = rank * layout.shard, (rank + 1) * layout.shard
    found = []
    for index, offset in zip(layout.indices, layout.offsets, strict=True):
        start, stop = max(low, offset), min(high, offset + sizes[index])
        if start < stop:
            found.append(Segment(index, start - offset, stop - offset, start - low))
    return found
