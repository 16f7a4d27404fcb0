"""Gradient compression for PyTorch tensors."""

from typing import Any

import torch

from horovod.common.compression import (
    CastCompressor,
    Choices,
    Compressor,
    NoneCompressor,
    WireBF16Compressor,
    WireCompressor,
    WireFP16Compressor,
    WireInt8Compressor,
)


class _Cast(CastCompressor):
    @staticmethod
    def is_floating(dtype: torch.dtype) -> bool:
        return dtype.is_floating_point

    @staticmethod
    def cast(tensor: Any, dtype: torch.dtype) -> Any:
        return tensor.to(dtype)


class FP16Compressor(_Cast):
    """Compressor that sends floating-point tensors as float16 and leaves other tensors unchanged."""

    dtype = torch.float16


class BF16Compressor(_Cast):
    """Compressor that sends floating-point tensors as bfloat16 and leaves other tensors unchanged.

    bfloat16 has the range of float32 with 8 bits of precision.
    """

    dtype = torch.bfloat16


class Compression(Choices):
    """Compressors accepted by the ``compression`` argument of ``DistributedOptimizer``."""

    fp16 = FP16Compressor
    bf16 = BF16Compressor


__all__ = [
    "BF16Compressor",
    "Compression",
    "Compressor",
    "FP16Compressor",
    "NoneCompressor",
    "WireBF16Compressor",
    "WireCompressor",
    "WireFP16Compressor",
    "WireInt8Compressor",
]
