"""Low-level TensorFlow ops, one function per op.

The engine matches ops between ranks by name. In eager mode, the name is ``name``, or a counter of unnamed ops. In
graphs and tf.functions, it is the name of the op's node, which TensorFlow makes unique. The node's name is ``name``, by
default ``HorovodAllreduce_<tensor>``, within the current name scope. ``ignore_name_scope=True`` drops the scope.

All functions raise ArgumentError, which is an InvalidArgumentError and a ValueError, for invalid arguments. A running
op raises FailedPreconditionError if ranks disagree or before init, InvalidArgumentError if an op of this name is
already in flight, and UnknownError, which names the op, after shutdown or if a rank was lost. ``process_set`` holds the
ranks that take part.
"""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from horovod._core import WIRE_NONE
from horovod.common.ops import Sum
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow._library import check_not_compiled, independent, ops
from horovod.tensorflow.arguments import (
    as_splits,
    as_tensor,
    as_tensors,
    check_reduction,
    check_root,
    check_scatter,
    name_arguments,
    set_id,
)
from horovod.tensorflow.util import _executing_eagerly

_NO_SPLITS = np.empty(0, np.int32)


def _factors(prescale: float, postscale: float) -> dict[str, Any]:
    """Return the op attributes for scale factors.

    TensorFlow's float attributes have 32 bits. A factor that needs more precision is also passed as the bits of a
    double.
    """
    attributes: dict[str, Any] = {}
    for key, value in (("prescale", prescale), ("postscale", postscale)):
        if value == 1.0:
            continue
        try:
            attributes[f"{key}_factor"] = rounded = struct.unpack("f", struct.pack("f", value))[0]
        except OverflowError:  # The factor is too large for a 32-bit float.
            rounded = None
        if rounded != value:
            attributes[f"{key}_bits"] = struct.unpack("q", struct.pack("d", value))[0]
    return attributes


def factor_of(op: Any, key: str) -> float:
    """Return the scale factor of an op at full precision. ``key`` is "prescale" or "postscale"."""
    bits = op.get_attr(f"{key}_bits")
    return struct.unpack("d", struct.pack("q", bits))[0] if bits else op.get_attr(f"{key}_factor")


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | int = global_process_set,
    wire: int = WIRE_NONE,
) -> tf.Tensor:
    """Reduce one dense tensor; see ``collectives.allreduce``.

    The tensor's shape must be the same on all ranks. ``op`` and ``wire`` are the engine's integer codes.

    Returns:
        The reduced tensor.
    """
    tensor = as_tensor(tensor, "allreduce")
    check_reduction("allreduce", tensor.dtype, op, prescale_factor, postscale_factor, process_set)
    naming = name_arguments("HorovodAllreduce", tensor, name, ignore_name_scope)
    output = ops.horovod_allreduce(
        tensor,
        reduce_op=op,
        **_factors(prescale_factor, postscale_factor),
        wire=wire,
        process_set_id=set_id(process_set, "allreduce"),
        **naming,
    )
    return output if "name" not in naming else independent(output)


def _grouped_allreduce(
    tensors: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | int = global_process_set,
    wire: int = WIRE_NONE,
) -> list[tf.Tensor]:
    """Reduce several dense tensors of the same dtype in a single operation; see ``collectives.grouped_allreduce``."""
    tensors = as_tensors(tensors, "grouped_allreduce")
    if not tensors:
        return []
    check_reduction("grouped_allreduce", tensors[0].dtype, op, prescale_factor, postscale_factor, process_set)
    naming = name_arguments("HorovodGroupedAllreduce", tensors[0], name, ignore_name_scope)
    outputs = ops.horovod_grouped_allreduce(
        tensors,
        reduce_op=op,
        **_factors(prescale_factor, postscale_factor),
        wire=wire,
        process_set_id=set_id(process_set, "grouped_allreduce"),
        **naming,
    )
    return list(outputs if "name" not in naming else independent(outputs))


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | int = global_process_set,
) -> tf.Tensor:
    """Concatenate the tensors of all ranks along dimension 0, in the order of ranks within the process set.

    The operation is differentiable: the gradient is this rank's part of the average of the ranks' output gradients.

    Args:
        tensor (tf.Tensor): Tensor with at least one dimension. All dimensions except the first must be the same on all
            ranks.
        name (str, optional): Name that identifies the operation on all ranks.
        ignore_name_scope (bool): Do not prefix ``name`` with the name scope. Default: False.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        tf.Tensor: Concatenated tensor.

    Raises:
        ValueError: If an argument is invalid. Also a tf.errors.InvalidArgumentError.
        tf.errors.UnknownError: If a rank was lost, or Horovod was shut down.
        tf.errors.FailedPreconditionError: If ranks disagree, or Horovod is not initialized.
    """
    tensor = as_tensor(tensor, "allgather")
    naming = name_arguments("HorovodAllgather", tensor, name, ignore_name_scope)
    output = ops.horovod_allgather(tensor, process_set_id=set_id(process_set, "allgather"), **naming)
    return output if "name" not in naming else independent(output)


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | int = global_process_set,
) -> list[tf.Tensor]:
    """Allgather several tensors of the same dtype in a single operation.

    Args:
        tensors (Sequence[tf.Tensor]): Tensors, each as in ``allgather``.
        name (str, optional): Name that identifies the operation on all ranks.
        ignore_name_scope (bool): Do not prefix ``name`` with the name scope. Default: False.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        list[tf.Tensor]: Concatenated tensors. Raises the same errors as ``allgather``.
    """
    tensors = as_tensors(tensors, "grouped_allgather")
    if not tensors:
        return []
    naming = name_arguments("HorovodGroupedAllgather", tensors[0], name, ignore_name_scope)
    outputs = ops.horovod_grouped_allgather(tensors, process_set_id=set_id(process_set, "grouped_allgather"), **naming)
    return list(outputs if "name" not in naming else independent(outputs))


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | int = global_process_set,
) -> tf.Tensor:
    """Return the root's tensor on all ranks.

    The operation is differentiable: on the root, the gradient is the average of the ranks' output gradients; on the
    other ranks, it is zero.

    Args:
        tensor (tf.Tensor): Tensor of any shape, which must be the same on all ranks.
        root_rank (int): World rank of the root, which must be in ``process_set``.
        name (str, optional): Name that identifies the operation on all ranks.
        ignore_name_scope (bool): Do not prefix ``name`` with the name scope. Default: False.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        tf.Tensor: The root's tensor. Raises the same errors as ``allgather``.
    """
    tensor = as_tensor(tensor, "broadcast")
    naming = name_arguments("HorovodBroadcast", tensor, name, ignore_name_scope)
    output = ops.horovod_broadcast(
        tensor, root_rank=check_root(root_rank, "broadcast"), process_set_id=set_id(process_set, "broadcast"), **naming
    )
    return output if "name" not in naming else independent(output)


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | int = global_process_set,
) -> Any:
    """Send ``splits[i]`` rows to rank i of the process set, and return the received rows concatenated in rank order.

    Args:
        tensor (tf.Tensor): Tensor with at least one dimension. All dimensions except the first must be the same on all
            ranks.
        splits (Sequence[int] or tf.Tensor, optional): Number of rows for each rank, 1-D of int32. Rows beyond their sum
            are not sent. Default: dimension 0, which must be a multiple of the number of ranks, is split into equal
            parts.
        name (str, optional): Name that identifies the operation on all ranks.
        ignore_name_scope (bool): Do not prefix ``name`` with the name scope. Default: False.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        tf.Tensor or tuple[tf.Tensor, tf.Tensor]: The output, or (output, received_splits) if ``splits`` is given.
        ``received_splits`` (int32) has the number of rows received from each rank. Raises the same errors as
        ``allgather``.
    """
    tensor = as_tensor(tensor, "alltoall")
    naming = name_arguments("HorovodAlltoall", tensor, name, ignore_name_scope)
    output, received = ops.horovod_alltoall(
        tensor,
        _NO_SPLITS if splits is None else as_splits(splits),
        process_set_id=set_id(process_set, "alltoall"),
        **naming,
    )
    if "name" in naming:
        independent(output)
    return output if splits is None else (output, received)


def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | int = global_process_set,
) -> tf.Tensor:
    """Reduce a tensor and return this rank's part along dimension 0; see ``collectives.reducescatter``."""
    tensor = as_tensor(tensor, "reducescatter")
    check_scatter("reducescatter", tensor, op, prescale_factor, postscale_factor)
    naming = name_arguments("HorovodReducescatter", tensor, name, ignore_name_scope)
    output = ops.horovod_reducescatter(
        tensor,
        reduce_op=op,
        **_factors(prescale_factor, postscale_factor),
        process_set_id=set_id(process_set, "reducescatter"),
        **naming,
    )
    return output if "name" not in naming else independent(output)


def _grouped_reducescatter(
    tensors: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | int = global_process_set,
) -> list[tf.Tensor]:
    """Reducescatter several tensors of the same dtype in a single operation; see ``_reducescatter``."""
    tensors = as_tensors(tensors, "grouped_reducescatter")
    if not tensors:
        return []
    for tensor in tensors:
        check_scatter("grouped_reducescatter", tensor, op, prescale_factor, postscale_factor)
    naming = name_arguments("HorovodGroupedReducescatter", tensors[0], name, ignore_name_scope)
    outputs = ops.horovod_grouped_reducescatter(
        tensors,
        reduce_op=op,
        **_factors(prescale_factor, postscale_factor),
        process_set_id=set_id(process_set, "grouped_reducescatter"),
        **naming,
    )
    return list(outputs if "name" not in naming else independent(outputs))


def join() -> tf.Tensor:
    """Wait until all ranks have joined. Until then, contribute zeros to the other ranks' allreduces.

    Returns:
        tf.Tensor: The rank that joined last, an int32 scalar.
    """
    return _result(ops.horovod_join())


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Return an op that reads the size of a process set at run time.

    A traced function that uses this op remains valid after an elastic job is resized.

    Args:
        process_set_id (int): Id of the set. Default: 0, all ranks.
        name (str, optional): Name of the op.

    Returns:
        tf.Tensor: Number of ranks, an int32 scalar.
    """
    return _result(ops.horovod_size(process_set_id=process_set_id, name=name))


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Return an op that checks at run time whether this rank is in a process set.

    Args:
        process_set_id (int): Id of the set. Default: 0, all ranks.
        name (str, optional): Name of the op.

    Returns:
        tf.Tensor: An int32 scalar: 1 if this rank is in the set, 0 if not, negative for an unknown set.
    """
    return _result(ops.horovod_process_set_included(process_set_id=process_set_id, name=name))


def rank_op(name: str | None = None) -> tf.Tensor:
    """Return an op that reads this process's rank at run time, as an int32 scalar."""
    return _result(ops.horovod_rank(name=name))


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """Return an op that reads this process's local rank at run time, as an int32 scalar."""
    return _result(ops.horovod_local_rank(name=name))


def local_size_op(name: str | None = None) -> tf.Tensor:
    """Return an op that reads the number of ranks on this host at run time, as an int32 scalar."""
    return _result(ops.horovod_local_size(name=name))


def _result(output: tf.Tensor) -> tf.Tensor:
    if _executing_eagerly():
        return output
    check_not_compiled(output.op.type)
    return independent(output)
