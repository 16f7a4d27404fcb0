"""Reduction operations, the deprecated ``average=`` argument, and the operation names that ranks match.

``python -m horovod.common.ops > core/base/reduce_op_table.h`` generates the engine's copy of the table of reductions.
"""

import functools
import math
import numbers
from collections.abc import Callable, Sequence

from horovod.common import dtypes
from horovod.common.contract.log import warn_user
from horovod.common.exceptions import UnsupportedOpError
from horovod.common.frontends import Frontend

OP_NAMES: tuple[str, ...] = ("Average", "Sum", "Adasum", "Min", "Max", "Product")
"""Name of each operation, by code. Append only."""

Average, Sum, Adasum, Min, Max, Product = range(len(OP_NAMES))

WITHOUT_GRADIENT = (Min, Max, Product)
"""Operations whose gradient depends on the inputs of all ranks."""

__all__ = [*OP_NAMES]  # frontend modules export these names with ``import *``


def op_name(op: object) -> str:
    """Return the name of a reduction for messages, such as ``Sum`` for 1, or the repr of an unknown value."""
    if isinstance(op, int) and not isinstance(op, bool) and 0 <= op < len(OP_NAMES):
        return OP_NAMES[op]
    return repr(op)


def check_op(op: object, accepted: Sequence[int] = range(len(OP_NAMES))) -> int:
    """Check ``op`` and return it as an int. NumPy integers are accepted too.

    Raises:
        ValueError: If ``op`` is not one of ``accepted``. The message names ``op`` and the accepted values.
    """
    if not isinstance(op, int) and isinstance(op, numbers.Integral):
        op = int(op)
    if not isinstance(op, int) or isinstance(op, bool) or op not in accepted:
        raise ValueError(f"op must be one of {', '.join(OP_NAMES[a] for a in accepted)}, got {op_name(op)}")
    return op


def resolve_op(
    op: int | None, average: bool | None = None, what: str | Callable[[], str] = "", error: type[Exception] = ValueError
) -> int:
    """Resolve ``op`` and the deprecated ``average`` to a reduction, which is Average if both are None.

    Args:
        op: Code of the operation, or None.
        average: True for Average, False for Sum, None if unused.
        what: Prefix of error messages, or a function that returns the prefix and is called only on errors.
        error: Type of the exception to raise.

    Raises:
        error: If ``op`` and ``average`` are both used, or ``op`` is unknown.
    """  # noqa: DOC501
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
    """Raise NotImplementedError unless ``size`` is a power of two."""
    if size & (size - 1):
        raise NotImplementedError(
            f"{operation}: the size of the process set must be a power of two with op=Adasum, got {size} ranks"
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
    """Check that a reduction is defined for a dtype and a number of ranks.

    Args:
        operation: Name of the operation for messages.
        dtype: Code of the dtype (see ``dtypes``).
        op: Code of the reduction.
        prescale: Factor applied before the reduction.
        postscale: Factor applied after the reduction.
        size: Number of ranks in the set.
        error: Type of the exception for an undefined reduction.

    Raises:
        error: If the dtype does not have this reduction.
        NotImplementedError: If ``op`` is Adasum and ``size`` is not a power of two.
    """
    if op == Adasum:
        if dtype not in dtypes.FLOATING:
            raise error(
                f"{operation}: the dtype must be float16, bfloat16, float32 or float64 with op=Adasum, got "
                f"{dtypes.NAMES[dtype]}"
            )
        check_adasum_size(operation, size)
    if dtype == dtypes.BOOL and (op == Average or prescale != 1.0 or postscale != 1.0):
        scaled = f" with prescale_factor={prescale}, postscale_factor={postscale}" if op != Average else ""
        raise error(
            f"{operation}: op must be Sum, Min, Max or Product without scaling for dtype bool, got op={OP_NAMES[op]}"
            f"{scaled}"
        )


def check_differentiable(operation: str, op: int) -> None:
    """Raise NotImplementedError if the reduction has no gradient.

    For such a reduction, the derivative cannot be computed by applying the same reduction to the gradients.
    """
    if op in WITHOUT_GRADIENT:
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
    """Check that reducescatter supports ``op`` and the tensor, and return ``op`` as an int.

    Args:
        operation: Name of the operation for messages.
        dtype: Code of the dtype (see ``dtypes``).
        dimensions: Number of dimensions of the tensor, or None if unknown.
        op: Code of the reduction: Average or Sum.
        error: Type of the exception for an unsupported tensor.
        op_error: Type of the exception for an unsupported ``op``.

    Raises:
        error: If the dtype is bool or the tensor is a scalar.
        op_error: If ``op`` is neither Average nor Sum.
    """
    try:
        op = check_op(op, (Average, Sum))
    except ValueError as refusal:
        raise op_error(f"{operation}: {refusal}") from None
    if dtype == dtypes.BOOL:
        raise error(f"{operation}: the dtype must be a number type, got bool")
    if dimensions == 0:
        raise error(f"{operation}: the tensor must have at least one dimension, got a scalar")
    return op


def check_scale(operation: str, prescale: object, postscale: object) -> None:
    """Raise ValueError if a scale factor is not a number. The message names the argument."""
    for argument, value in (("prescale_factor", prescale), ("postscale_factor", postscale)):
        if not hasattr(value, "__float__") or math.isnan(float(value)):
            raise ValueError(f"{operation}: {argument} must be a number, got {value!r}")


def check_splits(operation: str, counts: list[int], rows: int, size: int) -> None:
    """Check the splits of an alltoall.

    Args:
        operation: Name of the operation for messages.
        counts: Rows to send to each rank of the set.
        rows: Size of the tensor's dim 0.
        size: Number of ranks in the set.

    Raises:
        ValueError: If the number of splits is not ``size``, a split is negative, or their sum exceeds ``rows``.
    """
    if len(counts) != size:
        raise ValueError(
            f"{operation}: splits must have {size} entries, one for each rank of the process set, got {len(counts)}"
        )
    if any(count < 0 for count in counts):
        raise ValueError(f"{operation}: splits must be integers of 0 or more, got {counts}")
    if sum(counts) > rows:
        raise ValueError(
            f"{operation}: the sum of splits must be at most {rows}, the size of dim 0 of the tensor, got "
            f"{sum(counts)} from {counts}"
        )


def check_parts(operation: str, rows: int, size: int) -> None:
    """Raise ValueError if dim 0 is not evenly divisible in an alltoall without splits."""
    if rows % size:
        raise ValueError(f"{operation}: dim 0 is {rows}, no multiple of the {size} ranks of the set; give splits")


def scattered_rows(rows: int, rank: int, size: int) -> int:
    """Return the number of rows that reducescatter gives to rank ``rank`` of a set of ``size`` ranks.

    If ``rows`` is not a multiple of ``size``, the first ranks each get one extra row.
    """
    each, longer = divmod(rows, size)
    return each + (rank < longer)


def wire_name(operation: str, name: str | None) -> str:
    """Return the full name of an operation: ``allreduce.x`` for ("allreduce", "x"), or "" if ``name`` is None.

    The engine matches unnamed operations by a counter.

    Raises:
        ValueError: If ``name`` is not a string.
    """
    if name and not isinstance(name, str):
        raise ValueError(f"{operation}: name must be a str or None, got {name!r}")
    return f"{operation}.{name}" if name else ""


def group_names(operation: str, name: str, count: int) -> tuple[str, list[str]]:
    """Return the name of a group of operations, and the names of its members.

    For ("grouped_allreduce", "x", 2) these are ``grouped_allreduce.x`` and ``grouped_allreduce.x_1of2``, ...

    Raises:
        ValueError: If ``name`` is not a string.
    """
    group = wire_name(operation, name)
    return group, _members(group, count)


@functools.lru_cache(256)
def _members(group: str, count: int) -> list[str]:
    return [f"{group}_{i + 1}of{count}" for i in range(count)]


def grouped_names(
    frontend: Frontend, operation: str, name: str | None, count: int, process_set: int
) -> tuple[str, list[str]]:
    """Return the names of a grouped operation and of its members.

    For the name "x" and two members, the names are ``grouped_allreduce.x`` and ``grouped_allreduce.x_1of2``, ...

    Without ``name``, the members are unnamed too, so that the engine recognizes the same operations in every step.

    Args:
        frontend: Frontend that submits the operations.
        operation: ``grouped_allreduce``, ``grouped_allgather`` or ``grouped_reducescatter``.
        name: Name that the user has passed, or None.
        count: Number of members.
        process_set: Id of the process set.
    """
    if name:
        return group_names(operation, name, count)
    from horovod import _core

    kinds = {
        "grouped_allreduce": _core.KIND_ALLREDUCE,
        "grouped_allgather": _core.KIND_ALLGATHER,
        "grouped_reducescatter": _core.KIND_REDUCESCATTER,
    }
    return frontend.require_engine().name_group(kinds[operation], process_set, frontend.number), [""] * count


def generate_header() -> str:
    """Generate the contents of core/base/reduce_op_table.h from the table of reductions."""
    rows = [f'  X({name.lower()}, "{name}")' for name in OP_NAMES]
    lines = ["#define HVD_REDUCE_OPS(X)", *rows[:-1]]
    width = max(map(len, lines)) + 1
    return (
        "// Reduction operations, numbered in this order: X(C++ name, Python name).\n"
        "// Generated by `python -m horovod.common.ops > core/base/reduce_op_table.h`; edit horovod/common/ops.py.\n"
        "#pragma once\n" + "".join(f"{line:{width}}\\\n" for line in lines) + f"{rows[-1]}\n"
    )


if __name__ == "__main__":
    print(generate_header(), end="")
