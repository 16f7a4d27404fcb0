"""Gradient compression for JAX arrays."""

from typing import Any

from jax import numpy as jnp

from horovod.common.compression import CastCompressor, Choices


class _Cast(CastCompressor):
    @staticmethod
    def is_floating(dtype: Any) -> bool:
        return bool(jnp.issubdtype(dtype, jnp.floating))

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return tensor.astype(dtype)


class FP16Compressor(_Cast):
    """Compressor that sends floating-point arrays as float16 and leaves other arrays unchanged."""

    dtype = jnp.dtype(jnp.float16)


class BF16Compressor(_Cast):
    """Compressor that sends floating-point arrays as bfloat16 and leaves other arrays unchanged.

    bfloat16 has the range of float32 with 8 bits of precision.
    """

    dtype = jnp.dtype(jnp.bfloat16)


class Compression(Choices):
    """Compressors accepted by the ``compression`` argument."""

    fp16 = FP16Compressor
    bf16 = BF16Compressor
