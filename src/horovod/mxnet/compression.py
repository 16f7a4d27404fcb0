"""Gradient compression for MXNet arrays. Casts to bfloat16 require oneDNN."""

from typing import Any

import mxnet as mx
import numpy as np

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

_FLOATING = (np.float16, np.float32, np.float64)
_BF16 = np.dtype([("bfloat16", np.uint16)])
"""NumPy dtype by which MXNet's Python package represents bfloat16."""


class _Cast(CastCompressor):
    @staticmethod
    def is_floating(dtype: Any) -> bool:
        return dtype in _FLOATING

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        # Convert float64 separately. Only amp_cast supports bfloat16, and it leaves float64 unchanged.
        if tensor.dtype == np.float64:
            tensor = tensor.astype(np.float32 if dtype == _BF16 else dtype)
        if dtype == np.float64:
            return _Cast.cast(tensor, np.float32).astype(dtype)
        return tensor if tensor.dtype == dtype else mx.nd.amp_cast(tensor, dtype=dtype)


class FP16Compressor(_Cast):
    """Compressor that sends floating-point arrays as float16 and leaves other arrays unchanged."""

    dtype = np.float16


class BF16Compressor(_Cast):
    """Compressor that sends floating-point arrays as bfloat16 and leaves other arrays unchanged.

    bfloat16 has the range of float32 with 8 bits of precision.
    """

    dtype = _BF16


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
