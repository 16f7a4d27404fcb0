"""Gradient compression for NumPy arrays."""

from typing import Any

import numpy as np

from horovod.common import dtypes
from horovod.common.compression import CastCompressor, Choices


class _Cast(CastCompressor):
    @staticmethod
    def is_floating(dtype: Any) -> bool:
        return dtypes.CODES.get(dtype.name) in dtypes.FLOATING

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return tensor.astype(dtype)


class FP16Compressor(_Cast):
    """Compressor that sends floating-point arrays as float16 and leaves other arrays unchanged."""

    dtype = np.dtype(np.float16)


class BF16Compressor(_Cast):
    """Compressor that sends floating-point arrays as bfloat16 and leaves other arrays unchanged.

    bfloat16 has the range of float32 with 8 bits of precision. The package ml_dtypes is required, because it adds
    bfloat16 to NumPy.
    """

    dtype: Any = None

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        if cls.dtype is None:
            try:
                import ml_dtypes
            except ImportError as error:
                raise ImportError(
                    f"Compression.bf16 needs ml_dtypes, which cannot be imported ({error}); install it with: pip "
                    "install ml_dtypes, or use Compression.wire_bf16, which needs no package"
                ) from error
            cls.dtype = np.dtype(ml_dtypes.bfloat16)
        return super().compress(tensor)


class Compression(Choices):
    """Compressors accepted by the ``compression`` argument."""

    fp16 = FP16Compressor
    bf16 = BF16Compressor
