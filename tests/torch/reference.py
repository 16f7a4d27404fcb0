"""Expected results of reductions (tests/reference.py) as PyTorch tensors."""

from collections.abc import Sequence

import torch

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
if hasattr(torch, "uint16"):
    INTS.append(torch.uint16)
ALL = [torch.bool, *INTS, *FLOATS]
SHAPES = [(), (1,), (17,), (3, 5), (0,), (4, 0, 2), (2, 3, 4), (1031,)]


def value(rank: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """Return the input of a rank: small integers, so that sums are exact in every dtype; deterministic."""
    generator = torch.Generator().manual_seed(1000 * rank + sum((i + 1) * n for i, n in enumerate(shape)))
    whole = torch.randint(0, 4, tuple(shape), generator=generator)
    return whole.bool() if dtype is torch.bool else whole.to(dtype)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return True if both are equal in dtype, shape and every bit."""
    return a.dtype is b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


def bits(t: torch.Tensor) -> torch.Tensor:
    return t.detach().contiguous().reshape(-1).view(torch.uint8)
