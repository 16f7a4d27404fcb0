"""The TensorFlow face's process functions and ops, under the import path that other software uses.

An op's name matches it between ranks. In eager mode that is ``name``, or without one a count of the unnamed ops. In
graphs and tf.functions it is the name of the op's node, which TensorFlow makes unique: ``name``, or without one
``HorovodAllreduce_<tensor>``, after the name scope; ``ignore_name_scope=True`` drops the scope.

All raise ArgumentError, an InvalidArgumentError and a ValueError, for arguments that cannot work. When an op runs:
FailedPreconditionError where ranks disagree and before init, InvalidArgumentError for a name in flight, and
UnknownError, naming the op, after shutdown and when a peer is lost. ``process_set``: the ranks that take part.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from horovod._core import WIRE_NONE
from horovod.common import dtypes, util
from horovod.common.basics import HorovodBasics
from horovod.common.exceptions import HorovodInternalError
from horovod.common.ops import (
    OP_NAMES,
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    check_adasum_size,
    check_op,
    check_scale,
    resolve_op,
)
from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod.common.state import state
from horovod.tensorflow._library import check_not_compiled, independent, ops, refuse
from horovod.tensorflow.util import _executing_eagerly

_basics = HorovodBasics("tensorflow")

init = _basics.init
shutdown = _basics.shutdown
is_initialized = _basics.is_initialized
rank = _basics.rank
size = _basics.size
local_rank = _basics.local_rank
local_size = _basics.local_size
cross_rank = _basics.cross_rank
cross_size = _basics.cross_size
is_homogeneous = _basics.is_homogeneous
mpi_threads_supported = _basics.mpi_threads_supported
mpi_enabled = _basics.mpi_enabled
mpi_built = _basics.mpi_built
gloo_enabled = _basics.gloo_enabled
gloo_built = _basics.gloo_built
nccl_built = _basics.nccl_built
ddl_built = _basics.ddl_built
ccl_built = _basics.ccl_built
cuda_built = _basics.cuda_built
rocm_built = _basics.rocm_built
start_timeline = _basics.start_timeline
stop_timeline = _basics.stop_timeline

handle_average_backwards_compatibility = resolve_op
"""(op, average) -> op, for the deprecated ``average``."""

DTYPES: frozenset[tf.DType] = frozenset(tf.as_dtype(name) for name in dtypes.NAMES)
"""What can travel."""

_NO_SPLITS = np.empty(0, np.int32)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.\-/]")


def gpu_available(ext_base_name: str = "tensorflow", verbose: bool = False) -> bool:
    """Can tensors be reduced on a GPU?"""
    return util.gpu_available(ext_base_name, verbose)


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Is it 1, 2, 4, 8, ...?"""
    return util.num_rank_is_power_2(num_rank)


def as_tensor(value: Any, operation: str) -> tf.Tensor:
    """``value`` as a tensor whose dtype can travel. Raises ArgumentError naming operation and dtype otherwise."""
    tensor = value if isinstance(value, tf.Tensor) else tf.convert_to_tensor(value)
    if tensor.dtype not in DTYPES:
        refuse(f"{operation}: dtype {tensor.dtype.name} is not supported; accepted are {dtypes.SUPPORTED}")
    return tensor


def as_tensors(values: Any, operation: str) -> list[tf.Tensor]:
    """A list of tensors of one dtype. Raises ArgumentError for no list, and for several dtypes, naming them."""
    if isinstance(values, tf.Tensor) or not hasattr(values, "__iter__"):
        refuse(f"{operation}: tensors is a {type(values).__name__}; accepted is a list of tensors")
    tensors = [as_tensor(value, operation) for value in values]
    names = list(dict.fromkeys(tensor.dtype.name for tensor in tensors))
    if len(names) > 1:
        refuse(f"{operation}: the tensors have dtypes {', '.join(names)}; accepted is one dtype a call")
    return tensors


def _naming(kind: str, tensor: Any, name: str | None, ignore_name_scope: bool) -> dict[str, Any]:
    """The arguments about its name of an op of class ``kind`` whose first input is ``tensor``."""
    if name is not None and not isinstance(name, str):
        refuse(f"{kind}: name is {name!r}; accepted is text or None")
    if _executing_eagerly():
        # Kernels are kept by their attributes: unnamed ops, with equal ones, share a kernel.
        return {"tensor_name": name} if name else {"unnamed": True}
    check_not_compiled(kind)
    if not name:
        name = f"{kind}_{_graph_name(tensor).replace('/', '_')}"
    node = _NOT_IN_NAMES.sub("_", name)
    if not node[0].isalnum():
        node = "_" + node if tf.compat.v1.get_default_graph().get_name_scope() else "n" + node
    return {"name": node, "ignore_name_scope": True} if ignore_name_scope else {"name": node}


def _graph_name(tensor: Any) -> str:
    try:
        return tensor.name.rsplit(":", 1)[0]
    except AttributeError:  # an eager tensor that the graph captures has none
        return "captured"


def set_id(process_set: ProcessSet | int, operation: str) -> int:
    """Id of a registered set (an id is taken as it is). Raises ArgumentError naming operation, rank and set."""
    if isinstance(process_set, int):
        return process_set
    number = getattr(process_set, "process_set_id", None)
    if number is None:
        who = f" on rank {state.job.rank}" if state.job is not None else ""
        refuse(f"{operation}{who}: {process_set} is not a registered process set; see add_process_set")
    return number


def _check_reduction(
    operation: str, dtype: tf.DType, op: int, prescale: float, postscale: float, process_set: ProcessSet | int
) -> None:
    """Raises ArgumentError for what a dtype does not have, NotImplementedError for Adasum on a set whose size is no
    power of two."""
    check_scale(operation, prescale, postscale)
    if op == Adasum:
        if not dtype.is_floating:
            refuse(f"{operation}: op=Adasum is not defined for dtype {dtype.name}; accepted are floating dtypes")
        found = state.process_sets.get(set_id(process_set, operation))
        check_adasum_size(operation, (found.size() if found is not None else None) or 1)
    if dtype == tf.bool and (op == Average or prescale != 1.0 or postscale != 1.0):
        scaled = f" with prescale_factor={prescale}, postscale_factor={postscale}" if op != Average else ""
        refuse(
            f"{operation}: op={OP_NAMES[op]}{scaled} is not defined for dtype bool; accepted are Sum, Min, Max, "
            "Product without scaling"
        )


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
    _check_reduction("allreduce", tensor.dtype, op, prescale_factor, postscale_factor, process_set)
    naming = _naming("HorovodAllreduce", tensor, name, ignore_name_scope)
    output = ops.horovod_allreduce(
        tensor,
        reduce_op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
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
    _check_reduction("grouped_allreduce", tensors[0].dtype, op, prescale_factor, postscale_factor, process_set)
    naming = _naming("HorovodGroupedAllreduce", tensors[0], name, ignore_name_scope)
    outputs = ops.horovod_grouped_allreduce(
        tensors,
        reduce_op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
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
    naming = _naming("HorovodAllgather", tensor, name, ignore_name_scope)
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
    naming = _naming("HorovodGroupedAllgather", tensors[0], name, ignore_name_scope)
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
    naming = _naming("HorovodBroadcast", tensor, name, ignore_name_scope)
    output = ops.horovod_broadcast(
        tensor, root_rank=check_root(root_rank, "broadcast"), process_set_id=set_id(process_set, "broadcast"), **naming
    )
    return output if "name" not in naming else independent(output)


def check_root(root_rank: Any, operation: str) -> int:
    """``root_rank`` as an int. Raises ArgumentError for anything that is no integer; the engine checks membership."""
    if isinstance(root_rank, bool) or not hasattr(root_rank, "__index__"):
        refuse(f"{operation}: root_rank is {root_rank!r}; accepted is the world rank of a member, an int")
    return root_rank.__index__()


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
    naming = _naming("HorovodAlltoall", tensor, name, ignore_name_scope)
    output, received = ops.horovod_alltoall(
        tensor,
        _NO_SPLITS if splits is None else _as_splits(splits),
        process_set_id=set_id(process_set, "alltoall"),
        **naming,
    )
    if "name" in naming:
        independent(output)
    return output if splits is None else (output, received)


def _as_splits(splits: Any) -> tf.Tensor:
    try:
        dtype = getattr(splits, "dtype", tf.int32)
        made = tf.convert_to_tensor(splits, tf.as_dtype(dtype))
    except (TypeError, ValueError) as error:
        refuse(f"alltoall: splits is {splits!r}; accepted is a list or 1-D tensor of int32 ({error})")
    if made.dtype != tf.int32:
        refuse(f"alltoall: splits has dtype {made.dtype.name}; accepted is int32")
    if made.shape.rank not in (1, None):
        refuse(f"alltoall: splits has {made.shape.rank} dimensions; accepted is 1")
    if made.shape.num_elements() == 0:  # which the op takes for equal parts
        refuse("alltoall: splits is empty; accepted is one entry for each rank of the set, or None for equal parts")
    return made


def _check_scatter(operation: str, tensor: tf.Tensor, op: int, prescale: float, postscale: float) -> None:
    try:
        check_op(op, (Average, Sum))
    except ValueError as error:
        refuse(f"{operation}: {error}")
    check_scale(operation, prescale, postscale)
    if tensor.dtype == tf.bool:
        refuse(f"{operation}: dtype bool is not supported; accepted are all others")
    if tensor.shape.rank == 0:
        refuse(f"{operation}: the tensor is a scalar; accepted are tensors with at least one dimension")


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
    _check_scatter("reducescatter", tensor, op, prescale_factor, postscale_factor)
    naming = _naming("HorovodReducescatter", tensor, name, ignore_name_scope)
    output = ops.horovod_reducescatter(
        tensor,
        reduce_op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
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
        _check_scatter("grouped_reducescatter", tensor, op, prescale_factor, postscale_factor)
    naming = _naming("HorovodGroupedReducescatter", tensors[0], name, ignore_name_scope)
    outputs = ops.horovod_grouped_reducescatter(
        tensors,
        reduce_op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
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
    return output if _executing_eagerly() else independent(output)


__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "alltoall",
    "broadcast",
    "ccl_built",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "grouped_allgather",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]
