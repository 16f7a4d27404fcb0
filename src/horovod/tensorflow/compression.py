"""Gradient compression for TensorFlow tensors."""

from typing import Any

import tensorflow as tf

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
    def is_floating(dtype: tf.DType) -> bool:
        return dtype.is_floating

    @staticmethod
    def cast(tensor: Any, dtype: tf.DType) -> Any:
        return tf.cast(tensor, dtype)


class FP16Compressor(_Cast):
    """Compressor that sends floating-point tensors as float16 and leaves other tensors unchanged."""

    dtype = tf.float16


class BF16Compressor(_Cast):
    """Compressor that sends floating-point tensors as bfloat16 and leaves other tensors unchanged.

    bfloat16 has the range of float32 with 8 bits of precision.
    """

    dtype = tf.bfloat16


class Compression(Choices):
    """Compressors accepted by the ``compression`` argument."""

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
