"""What collectives have to give, computed in one process in double precision or 64-bit integers."""

from collections.abc import Sequence

import torch

import horovod.torch as hvd

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
if hasattr(torch, "uint16"):
    INTS.append(torch.uint16)
ALL = [torch.bool, *INTS, *FLOATS]
SHAPES = [(), (1,), (17,), (3, 5), (0,), (4, 0, 2), (2, 3, 4), (1031,)]


def value(rank: int, dtype: torch.dtype, shape: Sequence[int], low: int = 0, high: int = 4) -> torch.Tensor:
    """The input of a rank: small whole numbers, so that sums are exact in every dtype; the same in every process."""
    generator = torch.Generator().manual_seed(1000 * rank + sum((i + 1) * n for i, n in enumerate(shape)))
    whole = torch.randint(low, high, tuple(shape), generator=generator)
    return whole.bool() if dtype is torch.bool else whole.to(dtype)


def reduced(op: int, inputs: Sequence[torch.Tensor], pre: float = 1.0, post: float = 1.0) -> torch.Tensor:
    """As ``reduced`` in tests/reference.py, with PyTorch."""
    dtype = inputs[0].dtype
    if dtype is torch.bool:
        wide = torch.stack(inputs)
        return wide.all(0) if op in (hvd.Min, hvd.Product) else wide.any(0)
    wide = torch.stack([t.double() for t in inputs]) * pre
    if not dtype.is_floating_point:
        wide = wide.trunc()
    if op in (hvd.Sum, hvd.Average):
        result = wide.sum(0)
    elif op == hvd.Product:
        result = wide.prod(0)
    else:
        result = wide.amin(0) if op == hvd.Min else wide.amax(0)
    result = result * (post / len(inputs) if op == hvd.Average else post)
    if not dtype.is_floating_point:
        return result.trunc().long().to(dtype)
    return result.to(dtype)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal in dtype, shape and every bit?"""
    if a.dtype is not b.dtype or a.shape != b.shape:
        return False
    return a.numel() == 0 or torch.equal(bits(a), bits(b))


def bits(t: torch.Tensor) -> torch.Tensor:
    return t.detach().contiguous().reshape(-1).view(torch.uint8)


def assert_reduced(actual: torch.Tensor, op: int, inputs: Sequence[torch.Tensor], pre: float = 1.0, post: float = 1.0):
    """``actual`` is the reduction: exactly, but for one rounding in floats that are divided or scaled."""
    expected = reduced(op, inputs, pre, post)
    assert actual.dtype is expected.dtype
    assert actual.shape == expected.shape
    exact = not actual.dtype.is_floating_point or (op != hvd.Average and pre == 1.0 and post == 1.0)
    if exact:
        assert same_bits(actual, expected), (op, actual.dtype, actual, expected)
    else:
        torch.testing.assert_close(actual, expected)
