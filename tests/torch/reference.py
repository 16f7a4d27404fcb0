"""What reductions have to give, as tests/reference.py computes it, for tensors of PyTorch."""

from collections.abc import Sequence

import torch

import horovod.torch as hvd

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
if hasattr(torch, "uint16"):
    INTS.append(torch.uint16)
ALL = [torch.bool, *INTS, *FLOATS]
SHAPES = [(), (1,), (17,), (3, 5), (0,), (4, 0, 2), (2, 3, 4), (1031,)]


def value(rank: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """The input of a rank: small whole numbers, so that sums are exact in every dtype; the same in every process."""
    generator = torch.Generator().manual_seed(1000 * rank + sum((i + 1) * n for i, n in enumerate(shape)))
    whole = torch.randint(0, 4, tuple(shape), generator=generator)
    return whole.bool() if dtype is torch.bool else whole.to(dtype)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if both are equal in dtype, shape and every bit."""
    return a.dtype is b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


def bits(t: torch.Tensor) -> torch.Tensor:
    return t.detach().contiguous().reshape(-1).view(torch.uint8)


def assert_reduced(actual: torch.Tensor, op: int, inputs: Sequence[torch.Tensor]) -> None:
    """``actual`` is the reduction: exactly, but for one rounding in an average of floats."""
    dtype = inputs[0].dtype
    wide = torch.stack(list(inputs)) if dtype is torch.bool else torch.stack([t.double() for t in inputs])
    if op in (hvd.Sum, hvd.Average) and dtype is not torch.bool:
        expected = wide.sum(0) / (len(inputs) if op == hvd.Average else 1)
    elif op == hvd.Product and dtype is not torch.bool:
        expected = wide.prod(0)
    else:
        expected = wide.amin(0) if op in (hvd.Min, hvd.Product) else wide.amax(0)
    expected = expected.to(dtype) if dtype.is_floating_point else expected.long().to(dtype)
    if op == hvd.Average and dtype.is_floating_point:
        torch.testing.assert_close(actual, expected)
    else:
        assert same_bits(actual, expected), (op, dtype, actual, expected)
