"""Allreduce operations of the MXNet frontend. See ``operations`` for what all operations have in common."""

from collections.abc import Sequence
from typing import Any

import mxnet as mx

from horovod._core import (
    KIND_ALLREDUCE,
    WIRE_NONE,
)
from horovod.common import ops
from horovod.common.ops import Sum
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.training_loop.weights import check_weight, check_weighted_op
from horovod.mxnet._library import Operation, new_array, push
from horovod.mxnet.arguments import (
    begin,
    code_of,
    codes_of,
    number_of_dtype,
    operation_names,
    refusing,
)


def reduce(
    tensors: Sequence[Any],
    in_place: bool,
    op: int,
    name: str | None = None,
    priority: int = 0,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: ProcessSet = global_process_set,
    wire: int = WIRE_NONE,
    grouped: bool = False,
) -> list[Any]:
    """Allreduce several arrays as a group, or a single array if ``grouped`` is False.

    Returns:
        ``tensors`` themselves if ``in_place`` is True, and new arrays otherwise.
    """
    operation = ("grouped_allreduce" if grouped else "allreduce") + ("_" if in_place else "")
    number, priority = begin(operation, name, priority, process_set)
    codes = codes_of(tensors, operation, in_place) if grouped else [code_of(tensors[0], operation, in_place)]
    ops.check_scale(operation, prescale, postscale)
    for code in codes:
        ops.check_reduction(operation, code, op, prescale, postscale, process_set.size() or 1)
    if not tensors:
        return list(tensors)
    # In-place calls use the same operation names as other calls, so that ranks can mix the two.
    full, names = operation_names(operation.rstrip("_"), name, number, len(tensors) if grouped else None)
    outputs = tensors if in_place else [new_array(t, t.shape, number_of_dtype(t)) for t in tensors]
    how = (op, 0, priority, float(prescale), float(postscale), wire, grouped)
    push(Operation(KIND_ALLREDUCE, full, names, number, *how), codes, tensors, outputs)
    return list(outputs)


@refusing
def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
    weight: float | None = None,
) -> Any:
    """Reduce an array over all ranks and return the result as a new array.

    Args:
        tensor (NDArray): Array with the same shape and dtype on all ranks.
        average (bool, optional): Deprecated; use ``op``.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        priority (int): Priority in MXNet's engine; higher ones run first. Default: 0.
        prescale_factor (float): Factor applied to ``tensor`` before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the result. Default: 1.0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        op (int, optional): ``Average`` (default), ``Sum``, ``Adasum``, ``Min``, ``Max`` or ``Product``.
        weight (float, optional): This rank's weight, such as a number of samples, 0 or more. The result is then
            ``sum(weight * tensor) / sum(weight)`` over the ranks, computed in float32 or wider, and zeros if all
            weights are 0. An array with weight 0 can be NaN. All ranks must pass it, or none. It requires a
            floating-point array, ``Average``, and no scale factors. Default: all ranks count alike.

    Returns:
        NDArray: New array with the result.

    Raises:
        ValueError: If an argument is invalid, or Horovod is not initialized. Also an MXNetError.
        NotImplementedError: If ``op`` is ``Adasum`` and the number of ranks is not a power of two.
        HorovodInternalError: If the ranks' calls do not match, or a rank was lost. Raised when the program waits for
            the result; also an MXNetError.
    """
    resolved = ops.resolve_op(op, average)
    if weight is not None:
        check_weighted_op(resolved, weight, prescale_factor, postscale_factor)
        return _weighted(tensor, check_weight(weight), name, priority, process_set)
    return reduce([tensor], False, resolved, name, priority, prescale_factor, postscale_factor, process_set)[0]


def _weighted(tensor: Any, weight: float, name: str | None, priority: int, process_set: ProcessSet) -> Any:
    """Return the weighted mean of an array over the ranks.

    This does not use ``weighted_means``, because MXNet lacks the necessary broadcasting.

    Raises:
        ValueError: If the array does not contain floating-point numbers.
    """
    code_of(tensor, "allreduce", False)
    if "float" not in str(tensor.dtype):
        raise ValueError(f"tensor must be a floating-point tensor with weight, got {tensor.dtype.__name__}")
    wide = "float64" if "float64" in str(tensor.dtype) else "float32"
    value = tensor.reshape((-1,)).astype(wide)
    value = value * weight if weight > 0 else mx.nd.zeros_like(value)
    count = mx.nd.array([weight], ctx=tensor.context, dtype=wide)
    (sums,) = reduce([mx.nd.concat(value, count, dim=0)], False, Sum, name, priority, process_set=process_set)
    total = sums[-1:]
    return mx.nd.broadcast_div(sums[:-1], total + (total == 0)).reshape(tensor.shape).astype(tensor.dtype)


@refusing
def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Any:
    """Reduce an array over all ranks, in place.

    Args:
        tensor (NDArray): Array to reduce, as in ``allreduce``. It is overwritten with the result.
        average (bool, optional): Deprecated; use ``op``.
        name (str, optional): Same as in ``allreduce``.
        priority (int): Same as in ``allreduce``. Default: 0.
        prescale_factor (float): Factor applied to ``tensor`` before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the result. Default: 1.0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        op (int, optional): Same as in ``allreduce``. Default: ``Average``.

    Returns:
        NDArray: ``tensor``. Raises the same errors as ``allreduce``.
    """
    resolved = ops.resolve_op(op, average)
    return reduce([tensor], True, resolved, name, priority, prescale_factor, postscale_factor, process_set)[0]


@refusing
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[Any]:
    """Reduce several arrays over all ranks as a group, and return new arrays.

    Args:
        tensors (Sequence[NDArray]): Arrays, each as in ``allreduce``.
        average (bool, optional): Deprecated; use ``op``.
        name (str, optional): Same as in ``allreduce``.
        priority (int): Same as in ``allreduce``. Default: 0.
        prescale_factor (float): Factor applied to the arrays before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the results. Default: 1.0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        op (int, optional): Same as in ``allreduce``. Default: ``Average``.

    Returns:
        list[NDArray]: New arrays. Raises the same errors as ``allreduce``.
    """
    resolved = ops.resolve_op(op, average)
    scales = (prescale_factor, postscale_factor)
    return reduce(tensors, False, resolved, name, priority, *scales, process_set, grouped=True)


@refusing
def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[Any]:
    """Reduce several arrays over all ranks as a group, in place.

    Args:
        tensors (Sequence[NDArray]): Arrays to reduce, as in ``allreduce``. They are overwritten with the results.
        average (bool, optional): Deprecated; use ``op``.
        name (str, optional): Same as in ``allreduce``.
        priority (int): Same as in ``allreduce``. Default: 0.
        prescale_factor (float): Factor applied to the arrays before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the results. Default: 1.0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        op (int, optional): Same as in ``allreduce``. Default: ``Average``.

    Returns:
        list[NDArray]: ``tensors``. Raises the same errors as ``allreduce``.
    """
    resolved = ops.resolve_op(op, average)
    scales = (prescale_factor, postscale_factor)
    return reduce(tensors, True, resolved, name, priority, *scales, process_set, grouped=True)
