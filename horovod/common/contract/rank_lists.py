"""Ranks in messages, neighbours as a range. Pure."""

from collections.abc import Collection


def ranges(ranks: Collection[int], between: str = ",") -> str:
    """Sorted: ``0-3,7``. ``between``: what stands between two ranges."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return between.join(f"{low}" if low == high else f"{low}-{high}" for low, high in runs)


def named(ranks: Collection[int], between: str = ", ") -> str:
    """``rank 5``, ``ranks 0-3, 7``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks, between)}"
