"""Ranks in messages, neighbours as a range. Pure."""

from collections.abc import Collection


def runs(ranks: Collection[int]) -> list[tuple[int, int]]:
    """The first and the last one of neighbours, sorted."""
    found: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if found and found[-1][1] == rank - 1:
            found[-1] = (found[-1][0], rank)
        else:
            found.append((rank, rank))
    return found


def ranges(ranks: Collection[int], between: str = ",") -> str:
    """Sorted: ``0-3,7``. ``between``: what stands between two ranges."""
    return between.join(f"{low}" if low == high else f"{low}-{high}" for low, high in runs(ranks))


def named(ranks: Collection[int], between: str = ", ") -> str:
    """``rank 5``, ``ranks 0-3, 7``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks, between)}"
