"""Gradient compression for all frontends.

docs/compression.md compares the methods.

A compressor is a class with two static methods, ``compress(tensor) -> (tensor, context)`` and ``decompress(tensor,
context)``. Users can pass their own compressors. Casting compressors convert the tensor itself to 16 bits, so the sums
are rounded to 16 bits too. Wire compressors leave the tensor in float32, and the engine converts the values for
transfer but adds them in float32.

Each frontend defines how to cast its tensors (``CastCompressor``), and derives ``fp16`` and ``bf16`` from the cast.
"""

from typing import Any

from horovod._core import WIRE_BF16, WIRE_FP16, WIRE_INT8, WIRE_NONE
from horovod.common.dtypes import name_of
from horovod.common.ops import OP_NAMES, Average, Sum

_ACCEPTED = (
    "Compression.none, .fp16, .bf16, another of its classes, or a class with the functions compress and decompress"
)


class Compressor:
    """Base class of the built-in compressors. Custom compressors do not have to inherit from it."""

    wire_format: int = WIRE_NONE

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Compress a tensor. Return the tensor to send and the context for ``decompress``."""
        raise NotImplementedError("a compressor defines compress(tensor)")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Restore a received tensor to its original form, and return it."""
        raise NotImplementedError("a compressor defines decompress(tensor, ctx)")


class NoneCompressor(Compressor):
    """No-op compressor that returns tensors unchanged."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


class CastCompressor(Compressor):
    """Base class of compressors that cast floating-point tensors to ``dtype`` and back.

    Other tensors are unchanged. A frontend subclasses it with ``is_floating`` and ``cast``, and derives one compressor
    per ``dtype``.
    """

    dtype: Any

    @staticmethod
    def is_floating(dtype: Any) -> bool:
        """Return True if ``dtype`` is a floating-point dtype."""
        raise NotImplementedError("a frontend defines is_floating(dtype)")

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """Return ``tensor`` converted to ``dtype``."""
        raise NotImplementedError("a frontend defines cast(tensor, dtype)")

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Cast a floating-point tensor. The returned context is its original dtype, or None if it was not cast."""
        before = tensor.dtype
        if cls.is_floating(before) and before != cls.dtype:
            return cls.cast(tensor, cls.dtype), before
        return tensor, None

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """Cast a received tensor back to its original dtype."""
        return tensor if ctx is None else cls.cast(tensor, ctx)


class WireCompressor(NoneCompressor):
    """Base class of compressors that the engine implements, for float32 tensors reduced with Average or Sum.

    Each rank rounds its values once, before it sends them to the rank that adds them in float32. The sum is rounded
    once, before it is sent to all ranks. All ranks get exactly the same values. In a job on several hosts, ranks on the
    same host exchange float32.
    """

    wire_format: int = WIRE_NONE
    # True if PyTorch's optimizer carries each step's rounding error over to the next step's gradients (error feedback).
    error_feedback: bool = False


class WireFP16Compressor(WireCompressor):
    """Compressor that sends float16, which halves the data sent. Magnitudes above 65504 become infinity."""

    wire_format = WIRE_FP16


class WireBF16Compressor(WireCompressor):
    """Compressor that sends bfloat16, which halves the data sent. It has float32's range and 8 bits of precision."""

    wire_format = WIRE_BF16


class WireInt8Compressor(WireCompressor):
    """Compressor that sends int8 and one float32 scale per 256 values, about a quarter of the bytes.

    PyTorch's ``DistributedOptimizer`` adds error feedback. Without error feedback, each of the two roundings has an
    error of up to 1/254 of the largest magnitude in a block of 256 values. If a block contains an infinity or NaN, all
    its values become NaN.
    """

    wire_format = WIRE_INT8
    error_feedback = True


class Choices:
    """Compressors that all frontends share (``hvd.Compression``). Each frontend adds ``fp16`` and ``bf16``."""

    none = NoneCompressor
    wire_fp16 = WireFP16Compressor
    wire_bf16 = WireBF16Compressor
    wire_int8 = WireInt8Compressor


def check_compression(compression: object) -> None:
    """Raise ValueError if the argument is not a compressor. The message names the argument."""
    if not callable(getattr(compression, "compress", None)) or not callable(getattr(compression, "decompress", None)):
        raise ValueError(f"compression must be {_ACCEPTED}, got {compression!r}")


def wire_of(compression: Any) -> int:
    """Return the engine's wire format (WIRE_*) for a compressor, or WIRE_NONE if it compresses the tensor itself.

    Raises:
        ValueError: If the argument is not a compressor.
    """
    wire: int | None = getattr(compression, "wire_format", None)
    if wire is None:  # only built-in compressors have the attribute ``wire_format``
        check_compression(compression)
        return WIRE_NONE
    return wire


def leaves_alone(compression: Any) -> bool:
    """Return True if the compressor's ``compress`` and ``decompress`` return their input unchanged."""
    own = NoneCompressor
    return getattr(compression, "compress", None) is own.compress and compression.decompress is own.decompress


def check_wire(compression: Any, tensor: Any, op: int, what: str, error: type[Exception] = ValueError) -> int:
    """Check that a compressor supports the tensor and ``op``, and return its wire format, as ``wire_of`` does.

    Args:
        compression: The compressor.
        tensor: Tensor of any framework. A tensor without ``dtype`` is not checked.
        op: Code of the reduction.
        what: Prefix of error messages.
        error: Type of the exception to raise.

    Raises:
        error: If the compressor does not support the tensor's dtype or ``op``.
    """
    wire = wire_of(compression)
    if wire == WIRE_NONE:
        return wire
    dtype = name_of(getattr(tensor, "dtype", "float32"))
    if dtype != "float32":
        raise error(f"{what}: the dtype must be float32 with compression={_name(compression)}, got {dtype}")
    if op not in (Average, Sum):
        raise error(f"{what}: op must be Average or Sum with compression={_name(compression)}, got {OP_NAMES[op]}")
    return wire


def refuse_wire(compression: Any, what: str, error: type[Exception] = ValueError) -> None:
    """Raise ``error`` if the compressor supports only allreduce. ``what`` is the prefix of the message."""
    if wire_of(compression) != WIRE_NONE:
        raise error(
            f"{what}: compression must be Compression.none, fp16, bf16 or your own compressor, got "
            f"{_name(compression)}, which works with allreduce only"
        )


def _name(compression: Any) -> str:
    return getattr(compression, "__name__", type(compression).__name__)
