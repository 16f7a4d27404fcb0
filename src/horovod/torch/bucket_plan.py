"""Assignment of gradients to buckets. Pure: every rank computes the same result from the same input."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

ALIGNMENT = 64
"""Alignment of each gradient in its bucket, in bytes: a cache line and a vector register."""

DEVICE_ALIGNMENT = 256
"""Alignment in device memory, in bytes: the unit that GPU threads read together, and of GPU memory allocators."""

FIRST_BUCKET = 1 << 20
"""Maximum bytes of the first bucket; a small one can be sent early."""

BUCKET = 4 << 20
"""Maximum bytes of the other buckets; a larger gradient gets a bucket of its own."""

SMALL = 256 << 10
"""Maximum bytes of a gradient that shares a bucket by default.

A bucket saves operations, of which large gradients need few, but costs a copy.
"""


CPU = torch.device("cpu")


@dataclass(frozen=True)
class Gradient:
    """The properties of a gradient that determine its bucket."""

    numel: int
    dtype: torch.dtype
    device: torch.device = CPU

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize

    @property
    def padded(self) -> int:
        """``nbytes`` rounded up to a multiple of the alignment."""
        alignment = ALIGNMENT if self.device.type == "cpu" else DEVICE_ALIGNMENT
        return -(-self.nbytes // alignment) * alignment

    def like(self, other: "Gradient") -> bool:
        """Return True if both gradients may share a bucket."""
        return self.dtype is other.dtype and self.device == other.device


def plan(
    gradients: Sequence[Gradient], order: Sequence[int], first: int = FIRST_BUCKET, most: int = BUCKET
) -> list[list[int]]:
    """Return the buckets, each as a list of positions in ``gradients``.

    Args:
        gradients: Gradients to assign.
        order: Positions in ``gradients``, each once, in the order in which backward produces them. Neighbors with the
            same dtype and device share a bucket while it has room.
        first: Maximum bytes of the first bucket.
        most: Maximum bytes of the other buckets.
    """
    buckets: list[list[int]] = []
    filled, limit = 0, first
    for position in order:
        size = gradients[position].padded
        fits = buckets and filled + size <= limit and gradients[buckets[-1][-1]].like(gradients[position])
        if fits:
            buckets[-1].append(position)
            filled += size
        else:
            limit = most if buckets else first
            buckets.append([position])
            filled = size
    return buckets


def offsets(gradients: Sequence[Gradient]) -> tuple[list[int], int]:
    """Return (offset of each gradient in a bucket of exactly these, size of the bucket), in bytes."""
    starts: list[int] = []
    end = 0
    for gradient in gradients:
        starts.append(end)
        end += gradient.padded
    return starts, end
