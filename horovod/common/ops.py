"""Reduction operations, the old ``average=`` argument, and names on the wire."""

import functools
import math
import numbers
from collections.abc import Callable

from horovod.common import dtypes
from horovod.common.contract.frames import warn_user
from horovod.common.exceptions import UnsupportedOpError

Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5

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


def resolve_op(
    op: int | None, average: bool | None = None, what: str | Callable[[], str] = "", error: type[Exception] = ValueError
) -> int:
    """The operation meant by ``op`` and the deprecated ``average``: neither means Average.

    Raises ``error`` when both are given or ``op`` is unknown, beginning with ``what`` if that is given; a function of
    that is called only then.
    """
    try:
        if average is None:
            return Average if op is None else check_op(op)
        if op is not None:
            raise ValueError(f"average={average!r} and op={op_name(op)} are both given; use op alone")
    except ValueError as refusal:
        begin = what() if callable(what) else what
        raise error(f"{begin}: {refusal}" if begin else str(refusal)) from None
    warn_user("the argument average is deprecated, use op=Average or op=Sum", DeprecationWarning)
    return Average if average else Sum


def check_adasum_size(operation: str, size: int) -> None:
    """Raises NotImplementedError, naming ``size``, the number of ranks, unless it is a power of two."""
    if size & (size - 1):
        raise NotImplementedError(
            f"{operation}: op=Adasum on a process set of {size} ranks; accepted are sets whose size is a power of two"
        )


def check_reduction(
    operation: str,
    dtype: int,
    op: int,
    prescale: float,
    postscale: float,
    size: int,
    error: type[Exception] = ValueError,
) -> None:
    """Raises ``error`` for a reduction that a dtype (a code of ``dtypes``) does not have, NotImplementedError for
    Adasum on a number of ranks, ``size``, that is no power of two. All name ``operation``."""
    if op == Adasum:
        if dtype not in dtypes.FLOATING:
            raise error(
                f"{operation}: op=Adasum is not defined for dtype {dtypes.NAMES[dtype]}; accepted are float16, "
                "bfloat16, float32, float64"
            )
        check_adasum_size(operation, size)
    if dtype == dtypes.BOOL and (op == Average or prescale != 1.0 or postscale != 1.0):
        scaled = f" with prescale_factor={prescale}, postscale_factor={postscale}" if op != Average else ""
        raise error(
            f"{operation}: op={OP_NAMES[op]}{scaled} is not defined for dtype bool; accepted are Sum, Min, Max, "
            "Product without scaling"
        )


def check_differentiable(operation: str, op: int) -> None:
    """Raise NotImplementedError, naming ``operation``, for a reduction through which no gradient flows.

    The gradient of a minimum, maximum or product depends on all ranks' inputs; reducing the gradients by the same
    operation would give the derivative of nothing.
    """
    if op in (Min, Max, Product):
        raise NotImplementedError(
            f"{operation}: op={OP_NAMES[op]} has no gradient; use Average or Sum, or keep its input out of the "
            "computation of gradients (x.detach(), tf.stop_gradient(x), jax.lax.stop_gradient(x))"
        )


def check_scatter(
    operation: str,
    dtype: int,
    dimensions: int | None,
    op: object,
    error: type[Exception] = ValueError,
    op_error: type[Exception] = UnsupportedOpError,
) -> int:
    """``op`` as an int if a reducescatter can have it, for tensors of ``dtype`` (a code of ``dtypes``); of how many
    dimensions: None where that is not known yet. Raises ``error``, or ``op_error``, naming ``operation``."""
    try:
        op = check_op(op, (Average, Sum))
    except ValueError as refusal:
        raise op_error(f"{operation}: {refusal}") from None
    if dtype == dtypes.BOOL:
        raise error(f"{operation}: dtype bool is not supported; accepted are all others")
    if dimensions == 0:
        raise error(f"{operation}: the tensor is a scalar; accepted are tensors with at least one dimension")
    return op


def check_scale(operation: str, prescale: object, postscale: object) -> None:
    """Raises ValueError naming the scale factor that is no number."""
    for argument, value in (("prescale_factor", prescale), ("postscale_factor", postscale)):
        if not hasattr(value, "__float__") or math.isnan(float(value)):
            raise ValueError(f"{operation}: {argument} is {value!r}, accepted is a number")


def check_splits(operation: str, counts: list[int], rows: int, size: int) -> None:
    """Raises ValueError, naming ``operation``, for splits of an alltoall that do not fit a set of ``size`` ranks and a
    tensor whose dim 0 is ``rows``."""
    if len(counts) != size:
        raise ValueError(
            f"{operation}: splits has {len(counts)} entries; accepted are {size}, one for each rank of the set"
        )
    if any(count < 0 for count in counts):
        raise ValueError(f"{operation}: splits {counts} has a negative entry; accepted are integers of 0 or more")
    if sum(counts) > rows:
        raise ValueError(
            f"{operation}: splits {counts} sum up to {sum(counts)}, but dim 0 of the tensor is {rows}; accepted is a "
            "sum of at most that"
        )


def check_parts(operation: str, rows: int, size: int) -> None:
    """Raises ValueError, naming ``operation``, for an alltoall without splits whose dim 0 is not cut evenly."""
    if rows % size:
        raise ValueError(f"{operation}: dim 0 is {rows}, no multiple of the {size} ranks of the set; give splits")


def scattered_rows(rows: int, rank: int, size: int) -> int:
    """How many of ``rows`` a reducescatter gives to the set's rank ``rank`` of ``size``: the first ranks get one more
    where they are not cut evenly."""
    each, longer = divmod(rows, size)
    return each + (rank < longer)


def wire_name(operation: str, name: str | None) -> str:
    """``allreduce.x`` for ("allreduce", "x"); empty for an unnamed operation, which the engine matches by a counter.

    Raises ValueError for a name that is no text.
    """
    if name and not isinstance(name, str):
        raise ValueError(f"{operation}: name is {name!r}, accepted is text or None")
    return f"{operation}.{name}" if name else ""


def group_names(operation: str, name: str, count: int) -> tuple[str, list[str]]:
    """The name of a group and those of its members: ``grouped_allreduce.x`` and ``grouped_allreduce.x_1of2``, ..., for
    ("grouped_allreduce", "x", 2). Raises ValueError for a name that is no text."""
    group = wire_name(operation, name)
    return group, _members(group, count)


@functools.lru_cache(256)
def _members(group: str, count: int) -> list[str]:
    return [f"{group}_{i + 1}of{count}" for i in range(count)]
