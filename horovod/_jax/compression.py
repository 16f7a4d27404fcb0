"""The compressors of ``horovod.common.compression`` for JAX's arrays."""

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
    """Casts floating arrays to float16 and back; others are left alone."""

    dtype = jnp.dtype(jnp.float16)


class BF16Compressor(_Cast):
    """Casts floating arrays to bfloat16 (the range of float32, 8 bits of precision) and back; others are left alone."""

    dtype = jnp.dtype(jnp.bfloat16)


class Compression(Choices):
    """The choices for ``compression=``."""

    fp16 = FP16Compressor
    bf16 = BF16Compressor
