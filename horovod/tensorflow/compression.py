"""Compression of gradients: fewer bytes on the wire. docs/compression.md tells which to take when.

A compressor is a class with two static methods, ``compress(tensor) -> (tensor, context)`` and ``decompress(tensor,
context)``; users may pass their own. Casting ones change the tensor, so that sums are rounded to 16 bits as well. Wire
compressors leave it in float32 and tell the engine what its values are to be while they travel; it adds in float32.
"""

from typing import Any

import tensorflow as tf

from horovod._core import WIRE_BF16, WIRE_FP16, WIRE_INT8, WIRE_NONE
from horovod.common.ops import OP_NAMES, Average, Sum, check_compression
from horovod.tensorflow._library import refuse


class Compressor:
    """Base of the compressors here; not required of users' own."""

    wire_format: int = WIRE_NONE

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """(what travels, what ``decompress`` needs to know)."""
        raise NotImplementedError("a compressor defines compress(tensor)")

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """What arrived, in the form that the caller of ``compress`` had."""
        raise NotImplementedError("a compressor defines decompress(tensor, ctx)")


class NoneCompressor(Compressor):
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        return tensor


def _cast(tensor: tf.Tensor, dtype: tf.DType) -> tuple[tf.Tensor, tf.DType | None]:
    if tensor.dtype.is_floating and tensor.dtype != dtype:
        return tf.cast(tensor, dtype), tensor.dtype
    return tensor, None


class FP16Compressor(Compressor):
    """Casts floating tensors to float16 and back; others are left alone."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return _cast(tensor, tf.float16)

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        return tensor if ctx is None else tf.cast(tensor, ctx)


class BF16Compressor(Compressor):
    """Casts floating tensors to bfloat16 (the range of float32, 8 bits of precision) and back; others are left
    alone."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return _cast(tensor, tf.bfloat16)

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        return tensor if ctx is None else tf.cast(tensor, ctx)


class WireCompressor(NoneCompressor):
    """Base of the compressors that the engine carries out: float32 tensors, reduced with Average or Sum.

    Each contribution is rounded once on its way to the rank that adds it up in float32, the result once on its way to
    everybody; ranks get equal bits. Ranks of one host exchange float32 where several hosts take part.
    """

    wire_format: int = WIRE_NONE


class WireFP16Compressor(WireCompressor):
    """float16 on the wire, half the bytes; values above 65504 arrive as infinity."""

    wire_format = WIRE_FP16


class WireBF16Compressor(WireCompressor):
    """bfloat16 on the wire, half the bytes; the range of float32, 8 bits of precision."""

    wire_format = WIRE_BF16


class WireInt8Compressor(WireCompressor):
    """int8 on the wire with a float32 scale for every 256 values, about a quarter of the bytes.

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


def wire_of(compression: Any) -> int:
    """The engine's wire format (WIRE_*) that a compressor asks for; WIRE_NONE when it does its work itself. Raises
    ValueError, naming the argument, for what is no compressor."""
    wire: int | None = getattr(compression, "wire_format", None)
    if wire is None:  # not one of ours, which need no check each time
        check_compression(compression)
        return WIRE_NONE
    return wire


def check_wire(compression: Any, dtype: tf.DType, op: int, what: str) -> int:
    """``wire_of`` a compressor that is to carry tensors of ``dtype``. Raises ArgumentError, naming ``what``, when it
    cannot."""
    wire = wire_of(compression)
    if wire == WIRE_NONE:
        return wire
    if dtype != tf.float32:
        refuse(f"{what}: compression={_name(compression)} with dtype {dtype.name}; accepted is float32")
    if op not in (Average, Sum):
        refuse(f"{what}: compression={_name(compression)} with op={OP_NAMES[op]}; accepted are Average, Sum")
    return wire


def refuse_wire(compression: Any, what: str) -> None:
    """Raises ArgumentError, naming ``what``, for a compressor that only allreduce can carry out."""
    if wire_of(compression) != WIRE_NONE:
        refuse(
            f"{what}: compression={_name(compression)} works with allreduce only; accepted are Compression.none, "
            "fp16, bf16 and compressors of your own"
        )


def _name(compression: Any) -> str:
    return getattr(compression, "__name__", type(compression).__name__)
