"""Formatting of lists of ranks for messages, with consecutive ranks as ranges. Pure."""

from collections.abc import Collection


def runs(ranks: Collection[int]) -> list[tuple[int, int]]:
    """Return the (first, last) rank of each run of consecutive ranks, sorted."""
    found: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if found and found[-1][1] == rank - 1:
            found[-1] = (found[-1][0], rank)
        else:
            found.append((rank, rank))
    return found


def ranges(ranks: Collection[int], between: str = ",") -> str:
    """Return sorted ranges such as ``0-3,7``, separated by ``between``."""
    return between.join(f"{low}" if low == high else f"{low}-{high}" for low, high in runs(ranks))


def named(ranks: Collection[int], between: str = ", ") -> str:
    """Return text such as ``rank 5`` or ``ranks 0-3, 7``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks, between)}"
