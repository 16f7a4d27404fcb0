"""Reduction operations, the old ``average=`` argument, and names on the wire."""

import math
import numbers

from horovod.common.contract.frames import warn_user

Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5

_COMPRESSIONS = (
    "accepted are Compression.none, .fp16, .bf16 and its other classes, and classes of your own with the functions "
    "compress and decompress"
)

OP_NAMES: tuple[str, ...] = ("Average", "Sum", "Adasum", "Min", "Max", "Product")
"""Name by code."""


def op_name(op: object) -> str:
    """For messages: ``Sum`` for 1, the value itself for anything that is no operation."""
    if isinstance(op, int) and not isinstance(op, bool) and 0 <= op < len(OP_NAMES):
        return OP_NAMES[op]
    return repr(op)


def check_op(op: object, accepted: tuple[int, ...] = (Average, Sum, Adasum, Min, Max, Product)) -> int:
    """``op`` as an int if it is one of ``accepted``; NumPy's integers are good too. Raises ValueError naming both
    otherwise."""
    if not isinstance(op, int) and isinstance(op, numbers.Integral):
        op = int(op)
    if not isinstance(op, int) or isinstance(op, bool) or op not in accepted:
        raise ValueError(f"op is {op_name(op)}, accepted are {', '.join(OP_NAMES[a] for a in accepted)}")
    return op


def resolve_op(op: int | None, average: bool | None = None) -> int:
    """The operation meant by ``op`` and the deprecated ``average``: neither means Average.

    Raises ValueError when both are given or ``op`` is unknown.
    """
    if average is not None:
        if op is not None:
            raise ValueError(f"average={average!r} and op={op_name(op)} are both given; use op alone")
        warn_user("the argument average is deprecated, use op=Average or op=Sum", DeprecationWarning)
        return Average if average else Sum
    return Average if op is None else check_op(op)


def check_adasum_size(operation: str, size: int) -> None:
    """Raises NotImplementedError, naming ``size``, the number of ranks, unless it is a power of two."""
    if size & (size - 1):
        raise NotImplementedError(
            f"{operation}: op=Adasum on a process set of {size} ranks; accepted are sets whose size is a power of two"
        )


def check_scale(operation: str, prescale: object, postscale: object) -> None:
    """Raises ValueError naming the scale factor that is no number."""
    for argument, value in (("prescale_factor", prescale), ("postscale_factor", postscale)):
        if not hasattr(value, "__float__") or math.isnan(float(value)):
            raise ValueError(f"{operation}: {argument} is {value!r}, accepted is a number")


def check_compression(compression: object) -> None:
    """Raises ValueError naming what cannot compress, such as a name in quotes."""
    if not callable(getattr(compression, "compress", None)) or not callable(getattr(compression, "decompress", None)):
        raise ValueError(f"compression is {compression!r}; {_COMPRESSIONS}")


def wire_name(operation: str, name: str | None) -> str:
    """``allreduce.x`` for ("allreduce", "x"); empty for an unnamed operation, which the engine matches by a counter.

    Raises ValueError for a name that is no text.
    """
    if name and not isinstance(name, str):
        raise ValueError(f"{operation}: name is {name!r}, accepted is text or None")
    return f"{operation}.{name}" if name else ""
