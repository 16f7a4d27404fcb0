"""Measured collectives and sizes, and numbers of repetitions. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20

COLLECTIVES: Final = ("allreduce", "broadcast", "allgather", "alltoall", "reducescatter", "barrier")
FULL: Final = (4, 256, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
QUICK: Final = (4, 4 * KIB, 64 * KIB, MIB, 4 * MIB)


@dataclass(frozen=True)
class Case:
    """One collective at one size. A sample is the mean time of ``inner`` consecutive operations."""

    collective: str
    bytes: int
    """Bytes on one rank, as float32.

    Allreduce and broadcast: the tensor; allgather: the result; alltoall: what a rank sends; reducescatter: the input;
    barrier: 0.
    """
    inner: int
    samples: int

    @property
    def label(self) -> str:
        """Size in readable form, such as "64 KiB"."""
        return size_label(self.bytes)


def size_label(nbytes: int) -> str:
    """Return text such as "4 B", "64 KiB" or "1.5 MiB"."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:g} {name}"
    return f"{nbytes} B"


def parse_size(text: str) -> int:
    """Return the number of bytes in "65536", "64K", "64KiB" or "16 MiB". Raises ValueError."""
    number = text.strip().lower().removesuffix("b").removesuffix("i")
    factor = {"k": KIB, "m": MIB, "g": 1 << 30}.get(number[-1:], 1)
    return int(number.rstrip("kmg") if factor > 1 else number) * factor


def repeats(nbytes: int) -> tuple[int, int]:
    """Return (inner, samples) of one turn, chosen so that all sizes take about the same time."""
    table = ((64 * KIB, 20, 25), (MIB, 5, 20), (16 * MIB, 1, 12), (64 * MIB, 1, 6), (1 << 62, 1, 4))
    return next((inner, samples) for most, inner, samples in table if nbytes <= most)


def make_cases(collective: str, sizes: tuple[int, ...], ranks: int) -> list[Case]:
    """Return the cases of one collective.

    If each rank has a part of the tensor, sizes are rounded up so that every part is a multiple of 4 bytes.
    """
    if collective == "barrier":
        return [Case("barrier", 0, *repeats(0))]
    unit = 4 if collective in ("allreduce", "broadcast") else 4 * ranks
    rounded = dict.fromkeys(max(-(-size // unit), 1) * unit for size in sizes)
    return [Case(collective, size, *repeats(size)) for size in rounded]


def bus_factor(collective: str, ranks: int) -> float:
    """Return the ratio of bus bandwidth to bytes / time.

    It is the number of bytes that a rank must send at least, divided by ``Case.bytes``. With this factor, all
    collectives and numbers of ranks show the same bandwidth on equally fast links.
    """
    if collective == "barrier" or ranks < 2:
        return 0.0
    share = (ranks - 1) / ranks
    return {"allreduce": 2 * share, "broadcast": 1.0}.get(collective, share)
