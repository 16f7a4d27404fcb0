"""Which gradients go into which bucket. Pure: every rank computes the same from what all ranks know."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

ALIGNMENT = 64
"""Bytes to whose multiple each gradient's place in its bucket is rounded up: a cache line and a vector register."""

FIRST_BUCKET = 1 << 20
"""Bytes of the first bucket: a small one is on its way early."""

BUCKET = 4 << 20
"""Bytes of the others; a gradient that is larger has a bucket of its own."""

SMALL = 256 << 10
"""Bytes of the largest gradient that shares a bucket by default: a bucket saves operations, which large gradients have
few of, and costs a copy."""


@dataclass(frozen=True)
class Gradient:
    """What of a gradient decides about its place."""

    numel: int
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize


def plan(
    gradients: Sequence[Gradient], order: Sequence[int], first: int = FIRST_BUCKET, most: int = BUCKET
) -> list[list[int]]:
    """Positions in ``gradients`` by bucket.

    ``order``: the positions in the order in which the gradients arrive in backward, each once. Neighbours in this
    order share a bucket while they have one dtype and fill at most ``most`` bytes, ``first`` in the first bucket.
    """
    buckets: list[list[int]] = []
    filled, limit = 0, first
    for position in order:
        size = padded(gradients[position].nbytes)
        fits = buckets and filled + size <= limit and gradients[buckets[-1][-1]].dtype is gradients[position].dtype
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
        end += padded(gradient.nbytes)
    return starts, end


def padded(nbytes: int) -> int:
    """``nbytes`` rounded up to a multiple of the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
