"""The ops: one function for each, as it is called.

An op's name matches it between ranks. In eager mode that is ``name``, or without one a count of the unnamed ops. In
graphs and tf.functions it is the name of the op's node, which TensorFlow makes unique: ``name``, or without one
``HorovodAllreduce_<tensor>``, after the name scope; ``ignore_name_scope=True`` drops the scope.

All raise ArgumentError, an InvalidArgumentError and a ValueError, for arguments that cannot work. When an op runs:
FailedPreconditionError where ranks disagree and before init, InvalidArgumentError for a name in flight, and
UnknownError, naming the op, after shutdown and when a peer is lost. ``process_set``: the ranks that take part.
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
    """Attributes for scale factors. TensorFlow's are of 32 bits; what they round goes along as a double's bits."""
    attributes: dict[str, Any] = {}
    for key, value in (("prescale", prescale), ("postscale", postscale)):
        if value == 1.0:
            continue
        try:
            attributes[f"{key}_factor"] = rounded = struct.unpack("f", struct.pack("f", value))[0]
        except OverflowError:  # beyond the range of 32 bits
            rounded = None
        if rounded != value:
            attributes[f"{key}_bits"] = struct.unpack("q", struct.pack("d", value))[0]
    return attributes


def factor_of(op: Any, key: str) -> float:
    """The factor ("prescale" or "postscale") that an op was made with."""
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
    """One dense tensor of any shape, equal on all ranks; ``op``, ``wire``: codes. See collectives.allreduce."""
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
    """Dense tensors of one dtype that are reduced together. See collectives.grouped_allreduce."""
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
    """All ranks' tensors, one after another along dim 0, in which they may differ. Tensors have 1 dimension or more.

    The gradient is this rank's part of the average of the ranks' gradients.
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
    """``allgather`` of several tensors of one dtype together."""
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
    """The tensor of the root, a world rank; shapes are equal on all ranks. The gradient is the average on the root and
    zeros elsewhere."""
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
    """Sends ``splits[i]`` rows of ``tensor`` to the set's rank i and returns what came, in the order of ranks; with
    ``splits`` (int32, 1-D, one entry a rank, of a sum of dim 0 at most) the pair (output, received_splits: int32).

    Without ``splits`` dim 0 is cut into equal parts, which it must be a multiple of.
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
    """This rank's part of dim 0 of the reduction. See collectives.reducescatter."""
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
    """``_reducescatter`` of several tensors of one dtype together."""
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
    """Waits until all ranks have joined, contributing zeros to the others' allreduces meanwhile; int32 scalar: the rank
    that joined last."""
    return _asked(ops.horovod_join())


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """int32 scalar: the number of ranks of a set when the op runs, so that traced functions survive a resize."""
    return _asked(ops.horovod_size(process_set_id=process_set_id, name=name))


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """int32 scalar when the op runs: 1 when this rank is a member of the set, else 0; negative for an unknown set."""
    return _asked(ops.horovod_process_set_included(process_set_id=process_set_id, name=name))


def rank_op(name: str | None = None) -> tf.Tensor:
    """int32 scalar: ``rank()`` when the op runs."""
    return _asked(ops.horovod_rank(name=name))


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """int32 scalar: ``local_rank()`` when the op runs."""
    return _asked(ops.horovod_local_rank(name=name))


def local_size_op(name: str | None = None) -> tf.Tensor:
    """int32 scalar: ``local_size()`` when the op runs."""
    return _asked(ops.horovod_local_size(name=name))


def _asked(output: tf.Tensor) -> tf.Tensor:
    if _executing_eagerly():
        return output
    check_not_compiled(output.op.type)
    return independent(output)
