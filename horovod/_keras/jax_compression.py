"""Compression of gradients on JAX; docs/compression.md tells which to take when.

A compressor is a class with two static methods, ``compress(tensor) -> (tensor, context)`` and ``decompress(tensor,
context)``; users may pass their own. With ``wire_format`` (WIRE_* of horovod/_core.pyi) float32 arrays stay what they
are and the engine makes their values smaller while they travel.
"""

from typing import Any

from jax import numpy as jnp

from horovod._core import WIRE_BF16, WIRE_FP16, WIRE_INT8, WIRE_NONE


class NoneCompressor:
    """Leaves arrays as they are."""

    wire_format = WIRE_NONE

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


class _Cast(NoneCompressor):
    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else tensor.astype(ctx)


class FP16Compressor(_Cast):
    """Casts floating arrays to float16 and back; others are left alone."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return _cast(tensor, jnp.float16)


class BF16Compressor(_Cast):
    """Casts floating arrays to bfloat16 and back; others are left alone."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return _cast(tensor, jnp.bfloat16)


class WireFP16Compressor(NoneCompressor):
    """float16 on the wire, sums in float32; values above 65504 arrive as infinity."""

    wire_format = WIRE_FP16


class WireBF16Compressor(NoneCompressor):
    """bfloat16 on the wire, sums in float32."""

    wire_format = WIRE_BF16


class WireInt8Compressor(NoneCompressor):
    """int8 on the wire with a float32 scale for every 256 values, sums in float32.

    Up to 1/254 of the largest of 256 neighbouring values is lost, twice, and lost for good: unlike the PyTorch
    optimizer, this face has no error feedback. A block with an infinity or a NaN arrives as NaN altogether.
    """

    wire_format = WIRE_INT8


class Compression:
    """The choices for ``compression=``."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    wire_fp16 = WireFP16Compressor
    wire_bf16 = WireBF16Compressor
    wire_int8 = WireInt8Compressor


def _cast(tensor: Any, dtype: Any) -> tuple[Any, Any]:
    if jnp.issubdtype(tensor.dtype, jnp.floating) and tensor.dtype != dtype:
        return tensor.astype(dtype), tensor.dtype
    return tensor, None
