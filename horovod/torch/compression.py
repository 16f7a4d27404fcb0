"""Gradient compression: a smaller element type on the wire.

A compressor is a class with two static methods, ``compress(tensor) -> (tensor, context)`` and ``decompress(tensor,
context)``; users may pass their own.
"""

from typing import Any

import torch


class Compressor:
    """Base of the compressors here; not required of users' own."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """(what travels, what ``decompress`` needs to know)."""
        raise NotImplementedError("a compressor defines compress(tensor)")

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """What arrived, in the form that the caller of ``compress`` had."""
        raise NotImplementedError("a compressor defines decompress(tensor, ctx)")


class NoneCompressor(Compressor):
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.dtype | None]:
    if tensor.dtype.is_floating_point and tensor.dtype is not dtype:
        return tensor.to(dtype), tensor.dtype
    return tensor, None


class FP16Compressor(Compressor):
    """Casts floating tensors to float16 and back; others are left alone."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return _cast(tensor, torch.float16)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor if ctx is None else tensor.to(ctx)


class BF16Compressor(Compressor):
    """Casts floating tensors to bfloat16 (the range of float32, 8 bits of precision) and back; others are left
    alone."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return _cast(tensor, torch.bfloat16)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor if ctx is None else tensor.to(ctx)


class Compression:
    """The choices for ``compression=``."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
