"""Compression of gradients, for all faces: fewer bytes on the wire. docs/compression.md tells which to take when.

A compressor is a class with two static methods, ``compress(tensor) -> (tensor, context)`` and ``decompress(tensor,
context)``; users may pass their own. Casting ones change the tensor, so that sums are rounded to 16 bits as well. Wire
compressors leave it in float32 and tell the engine what its values are to be while they travel; it adds in float32.

A face adds what only it knows: how a tensor is cast (``CastCompressor``), and the two choices that are made of that.
"""

from typing import Any

from horovod._core import WIRE_BF16, WIRE_FP16, WIRE_INT8, WIRE_NONE
from horovod.common.dtypes import name_of
from horovod.common.ops import OP_NAMES, Average, Sum

_ACCEPTED = (
    "accepted are Compression.none, .fp16, .bf16 and its other classes, and classes of your own with the functions "
    "compress and decompress"
)


class Compressor:
    """Base of the compressors here; not required of users' own."""

    wire_format: int = WIRE_NONE

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """(what travels, what ``decompress`` needs to know)."""
        raise NotImplementedError("a compressor defines compress(tensor)")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """What arrived, in the form that the caller of ``compress`` had."""
        raise NotImplementedError("a compressor defines decompress(tensor, ctx)")


class NoneCompressor(Compressor):
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


class CastCompressor(Compressor):
    """Base of those that cast floating tensors to ``dtype`` and back; others are left alone.

    A face defines the two functions, for its kind of tensor; each compressor of it has the dtype, one of that face.
    """

    dtype: Any

    @staticmethod
    def is_floating(dtype: Any) -> bool:
        """Is it a dtype of floating numbers?"""
        raise NotImplementedError("a face defines is_floating(dtype)")

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """``tensor`` with ``dtype``."""
        raise NotImplementedError("a face defines cast(tensor, dtype)")

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        before = tensor.dtype
        if cls.is_floating(before) and before != cls.dtype:
            return cls.cast(tensor, cls.dtype), before
        return tensor, None

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else cls.cast(tensor, ctx)


class WireCompressor(NoneCompressor):
    """Base of the compressors that the engine carries out: float32 tensors, reduced with Average or Sum.

    Each contribution is rounded once on its way to the rank that adds it up in float32, the result once on its way to
    everybody; ranks get equal bits. Ranks of one host exchange float32 where several hosts take part.
    """

    wire_format: int = WIRE_NONE
    error_feedback: bool = False  # does PyTorch's optimizer add what was lost in one step to the next?


class WireFP16Compressor(WireCompressor):
    """float16 on the wire, half the bytes; values above 65504 arrive as infinity."""

    wire_format = WIRE_FP16


class WireBF16Compressor(WireCompressor):
    """bfloat16 on the wire, half the bytes; the range of float32, 8 bits of precision."""

    wire_format = WIRE_BF16


class WireInt8Compressor(WireCompressor):
    """int8 on the wire with a float32 scale for every 256 values, about a quarter of the bytes.

    In PyTorch's ``DistributedOptimizer`` with error feedback. Everywhere else up to 1/254 of the largest of 256
    neighbouring values is lost, twice, and lost for good. A block with an infinity or a NaN arrives as NaN altogether.
    """

    wire_format = WIRE_INT8
    error_feedback = True


class Choices:
    """What the choices for ``compression=`` of all faces have in common; each has ``fp16`` and ``bf16`` too."""

    none = NoneCompressor
    wire_fp16 = WireFP16Compressor
    wire_bf16 = WireBF16Compressor
    wire_int8 = WireInt8Compressor


def check_compression(compression: object) -> None:
    """Raises ValueError naming what cannot compress, such as a name in quotes."""
    if not callable(getattr(compression, "compress", None)) or not callable(getattr(compression, "decompress", None)):
        raise ValueError(f"compression is {compression!r}; {_ACCEPTED}")


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


def check_wire(compression: Any, tensor: Any, op: int, what: str, error: type[Exception] = ValueError) -> int:
    """``wire_of`` a compressor that is to carry ``tensor``, of any framework. Raises ``error``, naming ``what``, when
    it cannot; what is no tensor, and has no dtype, is refused elsewhere."""
    wire = wire_of(compression)
    if wire == WIRE_NONE:
        return wire
    dtype = name_of(getattr(tensor, "dtype", "float32"))
    if dtype != "float32":
        raise error(f"{what}: compression={_name(compression)} with dtype {dtype}; accepted is float32")
    if op not in (Average, Sum):
        raise error(f"{what}: compression={_name(compression)} with op={OP_NAMES[op]}; accepted are Average, Sum")
    return wire


def refuse_wire(compression: Any, what: str, error: type[Exception] = ValueError) -> None:
    """Raises ``error``, naming ``what``, for a compressor that only allreduce can carry out."""
    if wire_of(compression) != WIRE_NONE:
        raise error(
            f"{what}: compression={_name(compression)} works with allreduce only; accepted are Compression.none, "
            "fp16, bf16 and compressors of your own"
        )


def _name(compression: Any) -> str:
    return getattr(compression, "__name__", type(compression).__name__)
