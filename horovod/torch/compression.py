"""Compression of gradients: fewer bytes on the wire. docs/compression.md tells which to take when.

A compressor is a class with two static methods, ``compress(tensor) -> (tensor, context)`` and ``decompress(tensor,
context)``; users may pass their own. Casting ones change the tensor, so that sums are rounded to 16 bits as well. Wire
compressors leave it in float32 and tell the engine what its values are to be while they travel; it adds in float32.
"""

from typing import Any

import torch

from horovod._core import WIRE_BF16, WIRE_FP16, WIRE_INT8, WIRE_NONE
from horovod.common.ops import OP_NAMES, Average, Sum, check_compression


class Compressor:
    """Base of the compressors here; not required of users' own."""

    wire_format: int = WIRE_NONE

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """(what travels, what ``decompress`` needs to know)."""
        raise NotImplementedError("a compressor defines compress(tensor)")

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """What arrived, in the form that the caller of ``compress`` had."""
        raise NotImplementedError("a compressor defines decompress(tensor, ctx)")


class NoneCompressor(Compressor):
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.dtype | None]:
    if tensor.dtype.is_floating_point and tensor.dtype is not dtype:
        return tensor.to(dtype), tensor.dtype
    return tensor, None


class FP16Compressor(Compressor):
    """Casts floating tensors to float16 and back; others are left alone."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return _cast(tensor, torch.float16)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor if ctx is None else tensor.to(ctx)


class BF16Compressor(Compressor):
    """Casts floating tensors to bfloat16 (the range of float32, 8 bits of precision) and back; others are left
    alone."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return _cast(tensor, torch.bfloat16)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor if ctx is None else tensor.to(ctx)


class WireCompressor(NoneCompressor):
    """Base of the compressors that the engine carries out: float32 tensors, reduced with Average or Sum.

    Each contribution is rounded once on its way to the rank that adds it up in float32, the result once on its way to
    everybody; ranks get equal bits. Ranks of one host exchange float32 where several hosts take part.
    """

    wire_format: int = WIRE_NONE
    error_feedback: bool = False  # does an optimizer add what was lost in one step to the next?


class WireFP16Compressor(WireCompressor):
    """float16 on the wire, half the bytes; values above 65504 arrive as infinity."""

    wire_format = WIRE_FP16


class WireBF16Compressor(WireCompressor):
    """bfloat16 on the wire, half the bytes; the range of float32, 8 bits of precision."""

    wire_format = WIRE_BF16


class WireInt8Compressor(WireCompressor):
    """int8 on the wire with a float32 scale for every 256 values, about a quarter of the bytes.

    In ``DistributedOptimizer`` with error feedback; a plain ``allreduce`` just loses up to 1/254 of the largest of 256
    neighbouring values, twice. A block with an infinity or a NaN arrives as NaN altogether.
    """

    wire_format = WIRE_INT8
    error_feedback = True


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


def leaves_alone(compression: Any) -> bool:
    """Does the compressor hand on the very tensor that it is given, and give back what it gets?"""
    own = NoneCompressor
    return getattr(compression, "compress", None) is own.compress and compression.decompress is own.decompress


def check_wire(compression: Any, tensor: Any, op: int, what: str) -> int:
    """``wire_of`` a compressor that is to carry ``tensor``. Raises ValueError, naming ``what``, when it cannot; what is
    no tensor is refused elsewhere."""
    wire = wire_of(compression)
    if wire == WIRE_NONE:
        return wire
    if isinstance(tensor, torch.Tensor) and tensor.dtype is not torch.float32:
        given = f"compression={_name(compression)} with dtype {tensor.dtype}"
        raise ValueError(f"{what}: {given}; accepted is torch.float32")
    if op not in (Average, Sum):
        given = f"compression={_name(compression)} with op={OP_NAMES[op]}"
        raise ValueError(f"{what}: {given}; accepted are Average, Sum")
    return wire


def refuse_wire(compression: Any, what: str) -> None:
    """Raises ValueError, naming ``what``, for a compressor that only allreduce can carry out."""
    if wire_of(compression) != WIRE_NONE:
        raise ValueError(
            f"{what}: compression={_name(compression)} works with allreduce only; accepted are Compression.none, "
            "fp16, bf16 and compressors of your own"
        )


def _name(compression: Any) -> str:
    return getattr(compression, "__name__", type(compression).__name__)
