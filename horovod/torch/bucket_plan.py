"""Which gradients go into which bucket. Pure: every rank computes the same from what all ranks know."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

ALIGNMENT = 64
"""Bytes to whose multiple each gradient's place in its bucket is rounded up: a cache line and a vector register."""

DEVICE_ALIGNMENT = 256
"""The same in a device's memory: what a GPU's threads read together, and where allocators of such memory begin."""

FIRST_BUCKET = 1 << 20
"""Bytes of the first bucket: a small one is on its way early."""

BUCKET = 4 << 20
"""Bytes of the others; a gradient that is larger has a bucket of its own."""

SMALL = 256 << 10
"""Bytes of the largest gradient that shares a bucket by default: a bucket saves operations, which large gradients have
few of, and costs a copy."""


CPU = torch.device("cpu")


@dataclass(frozen=True)
class Gradient:
    """What of a gradient decides about its place."""

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
        """May they share a bucket?"""
        return self.dtype is other.dtype and self.device == other.device


def plan(
    gradients: Sequence[Gradient], order: Sequence[int], first: int = FIRST_BUCKET, most: int = BUCKET
) -> list[list[int]]:
    """Positions in ``gradients`` by bucket.

    ``order``: the positions in the order in which the gradients arrive in backward, each once. Neighbours in this
    order share a bucket while they have one dtype and device and fill at most ``most`` bytes, ``first`` in the first
    bucket.
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
    """(first byte of each gradient in a bucket of exactly these, bytes of the bucket)."""
    starts: list[int] = []
    end = 0
    for gradient in gradients:
        starts.append(end)
        end += gradient.padded
    return starts, end
