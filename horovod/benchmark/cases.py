"""What is measured and how often. Pure data."""

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
    """One collective at one size. A sample is the mean of ``inner`` operations in a row."""

    collective: str
    bytes: int
    """The operation's on one rank, of float32: allreduce, broadcast: the tensor; allgather: what is gathered;
    alltoall: what a rank sends; reducescatter: what a rank puts in. 0 for barrier."""
    inner: int
    samples: int

    @property
    def label(self) -> str:
        """Its size for people."""
        return size_label(self.bytes)


def size_label(nbytes: int) -> str:
    """4 B, 64 KiB, 1.5 MiB."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:g} {name}"
    return f"{nbytes} B"


def parse_size(text: str) -> int:
    """Bytes in "65536", "64K", "64KiB", "16 MiB". Raises ValueError."""
    number = text.strip().lower().removesuffix("b").removesuffix("i")
    factor = {"k": KIB, "m": MIB, "g": 1 << 30}.get(number[-1:], 1)
    return int(number.rstrip("kmg") if factor > 1 else number) * factor


def repeats(nbytes: int) -> tuple[int, int]:
    """(inner, samples) of one turn: about as long for every size."""
    table = ((64 * KIB, 20, 25), (MIB, 5, 20), (16 * MIB, 1, 12), (64 * MIB, 1, 6), (1 << 62, 1, 4))
    return next((inner, samples) for most, inner, samples in table if nbytes <= most)


def make_cases(collective: str, sizes: tuple[int, ...], ranks: int) -> list[Case]:
    """Cases of one collective. Where each rank has a part, sizes are rounded up to whole numbers (4 bytes) a rank."""
    if collective == "barrier":
        return [Case("barrier", 0, *repeats(0))]
    unit = 4 if collective in ("allreduce", "broadcast") else 4 * ranks
    rounded = dict.fromkeys(max(-(-size // unit), 1) * unit for size in sizes)
    return [Case(collective, size, *repeats(size)) for size in rounded]


def bus_factor(collective: str, ranks: int) -> float:
    """What the bandwidth bytes / time is multiplied with, so that every collective and every number of ranks would
    show the same figure on links of one speed: the bytes that a rank cannot but send, over ``Case.bytes``."""
    if collective == "barrier" or ranks < 2:
        return 0.0
    share = (ranks - 1) / ranks
    return {"allreduce": 2 * share, "broadcast": 1.0}.get(collective, share)
