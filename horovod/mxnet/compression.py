"""The compressors of ``horovod.common.compression`` for MXNet's arrays. bfloat16 is cast by oneDNN alone."""

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
"""What MXNet's Python calls bfloat16."""


class _Cast(CastCompressor):
    @staticmethod
    def is_floating(dtype: Any) -> bool:
        return dtype in _FLOATING

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        # amp_cast is the one that knows bfloat16, and it leaves float64 as it is.
        if tensor.dtype == np.float64:
            tensor = tensor.astype(np.float32 if dtype == _BF16 else dtype)
        if dtype == np.float64:
            return _Cast.cast(tensor, np.float32).astype(dtype)
        return tensor if tensor.dtype == dtype else mx.nd.amp_cast(tensor, dtype=dtype)


class FP16Compressor(_Cast):
    """Casts floating arrays to float16 and back; others are left alone."""

    dtype = np.float16


class BF16Compressor(_Cast):
    """Casts floating arrays to bfloat16 (the range of float32, 8 bits of precision) and back; others are left
    alone."""

    dtype = _BF16


class Compression(Choices):
    """The choices for ``compression=``."""

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
