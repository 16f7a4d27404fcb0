"""The operations: one function for each, as it is called.

Each hands its arrays to MXNet's engine and returns at once; MXNet runs it when what comes before it on the same arrays
is done, and what comes behind it waits. ``name``: text that all ranks give alike; operations of one name go one after
another, in the order of calls. Without names they are matched by that order. ``priority``: of MXNet's engine, among
what is ready the highest goes first. ``process_set``: the ranks that take part. Arrays are dense, of the CPU.

Arguments that cannot work raise ArgumentError, an MXNetError and a ValueError. What fails later, because ranks disagree
or one is lost, raises InternalError, an MXNetError and a HorovodInternalError, where somebody next waits for an array
that was to be written: ``asnumpy()``, ``wait_to_read()``, ``mx.nd.waitall()``.
"""

from collections.abc import Sequence
from typing import Any

import mxnet as mx

from horovod._arrays.collectives import root_of, set_id
from horovod._core import (
    KIND_ALLGATHER,
    KIND_ALLREDUCE,
    KIND_ALLTOALL,
    KIND_BROADCAST,
    KIND_REDUCESCATTER,
    WIRE_NONE,
)
from horovod.common import ops
from horovod.common.faces import MXNET as face
from horovod.common.ops import Average
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.mxnet._library import Operation, push
from horovod.mxnet.arguments import (
    check_priority,
    code_of,
    codes_of,
    number_of_dtype,
    refusing,
    splits_of,
    unnamed,
)
from horovod.mxnet.gathered import Arrival, arriving, new_array


def _begin(operation: str, name: str | None, priority: Any, process_set: ProcessSet) -> tuple[int, int]:
    """(id of the set, priority), checked."""
    face.require_engine()
    ops.wire_name(operation, name)
    return set_id(face, process_set, operation), check_priority(priority, operation)


def _names(operation: str, name: str | None, number: int, count: int | None) -> tuple[str, list[str]]:
    """Of the operation and of its members; ``count`` None: no group."""
    name = name or unnamed.next(operation, number)
    if count is None:
        full = ops.wire_name(operation, name)
        return full, [full]
    return ops.group_names(operation, name, count)


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
    """Allreduces of several arrays, a group unless there is one that is not ``grouped``. Returns ``tensors`` if
    ``in_place``, else new arrays."""
    operation = ("grouped_allreduce" if grouped else "allreduce") + ("_" if in_place else "")
    number, priority = _begin(operation, name, priority, process_set)
    codes = codes_of(tensors, operation, in_place) if grouped else [code_of(tensors[0], operation, in_place)]
    ops.check_scale(operation, prescale, postscale)
    for code in codes:
        ops.check_reduction(operation, code, op, prescale, postscale, process_set.size() or 1)
    if not tensors:
        return list(tensors)
    # In place and not, they may meet.
    full, names = _names(operation.rstrip("_"), name, number, len(tensors) if grouped else None)
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
) -> Any:
    """The reduction of all ranks' arrays of one shape, in a new array on every rank. ``average``: deprecated, use
    ``op``: Average (the default), Sum, Adasum, Min, Max, Product. The factors multiply before and after. Raises
    NotImplementedError for Adasum on a number of ranks that is no power of two."""
    resolved = ops.resolve_op(op, average)
    return reduce([tensor], False, resolved, name, priority, prescale_factor, postscale_factor, process_set)[0]


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
    """``allreduce`` in place; returns ``tensor``."""
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
    """``allreduce`` of several arrays that run and complete together."""
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
    """``grouped_allreduce`` in place; returns ``tensors``."""
    resolved = ops.resolve_op(op, average)
    scales = (prescale_factor, postscale_factor)
    return reduce(tensors, True, resolved, name, priority, *scales, process_set, grouped=True)


def _gather(operation: str, tensors: Sequence[Any], name: str | None, priority: int, process_set: ProcessSet) -> Any:
    number, priority = _begin(operation, name, priority, process_set)
    grouped = operation.startswith("grouped")
    codes = codes_of(tensors, operation) if grouped else [code_of(tensors[0], operation)]
    if not tensors:
        return []
    full, names = _names(operation, name, number, len(tensors) if grouped else None)
    stand_in = mx.nd.empty((1,))
    what = Operation(KIND_ALLGATHER, full, names, number, priority=priority, grouped=grouped)
    arrival = Arrival(stand_in, push(what, codes, tensors, [stand_in]))
    return [_member(arrival, i, tensor) for i, tensor in enumerate(tensors)]


def _member(arrival: Arrival, index: int, tensor: Any) -> Any:
    shape, number = tensor.shape, number_of_dtype(tensor)
    # Not the array itself, whose memory may go.
    like = new_array(tensor, (1,), number)
    return arriving(tensor, lambda: arrival.array(index, like, shape, number))


@refusing
def allgather(
    tensor: Any, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> Any:
    """All ranks' arrays, one after another along dim 0, in which they may differ. Arrays have 1 dimension or more.

    The size depends on the other ranks: the first use of the result, if it is only to ask for its shape, waits.
    """
    return _gather("allgather", [tensor], name, priority, process_set)[0]


@refusing
def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """``allgather`` of several arrays together."""
    gathered: list[Any] = _gather("grouped_allgather", tensors, name, priority, process_set)
    return gathered


def broadcast_to(
    tensor: Any, output: Any, root_rank: int, name: str | None, priority: int, process_set: ProcessSet
) -> Any:
    """Writes the root's array to ``output``, which may be ``tensor``."""
    operation = "broadcast"
    number, priority = _begin(operation, name, priority, process_set)
    root = root_of(root_rank, process_set, operation)
    code = code_of(tensor, operation, output is tensor)
    full, names = _names(operation, name, number, None)
    if output is None:
        output = new_array(tensor, tensor.shape, number_of_dtype(tensor))
    what = Operation(KIND_BROADCAST, full, names, number, root=root, priority=priority)
    push(what, [code], [tensor], [output])
    return output


@refusing
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The array of the root, a world rank, in a new array on every rank; shapes are equal on all ranks."""
    return broadcast_to(tensor, None, root_rank, name, priority, process_set)


@refusing
def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """``broadcast`` in place; returns ``tensor``."""
    return broadcast_to(tensor, tensor, root_rank, name, priority, process_set)


@refusing
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends ``splits[i]`` rows of ``tensor`` to the set's rank i and returns what came, in the order of ranks; with
    ``splits`` (a list, or a 1-D array of int32, of a sum of dim 0 at most) the pair (output, received_splits: int32).

    Without ``splits`` dim 0 is cut into equal parts, which it must be a multiple of. The first use of a result waits,
    as of ``allgather``; ``splits`` that is an NDArray is waited for at once.
    """
    number, priority = _begin("alltoall", name, priority, process_set)
    code = code_of(tensor, "alltoall")
    given = splits_of(splits, tensor.shape[0] if tensor.shape else None, process_set)
    full, names = _names("alltoall", name, number, None)
    stand_in = mx.nd.empty((1,))
    what = Operation(KIND_ALLTOALL, full, names, number, priority=priority, splits=given)
    arrival = Arrival(stand_in, push(what, [code], [tensor], [stand_in]))
    output = _member(arrival, 0, tensor)
    if splits is None:
        return output
    array = mx.np.array if isinstance(tensor, mx.np.ndarray) else mx.nd.array
    return output, arriving(tensor, lambda: array(arrival.sizes(0), dtype="int32"))


def _scatter(
    operation: str,
    tensors: Sequence[Any],
    op: int,
    name: str | None,
    priority: int,
    process_set: ProcessSet,
    prescale: float,
    postscale: float,
) -> list[Any]:
    number, priority = _begin(operation, name, priority, process_set)
    grouped = operation.startswith("grouped")
    codes = codes_of(tensors, operation) if grouped else [code_of(tensors[0], operation)]
    for tensor, code in zip(tensors, codes, strict=True):
        op = ops.check_scatter(operation, code, len(tensor.shape), op)
    ops.check_scale(operation, prescale, postscale)
    if not tensors:
        return []
    full, names = _names(operation, name, number, len(tensors) if grouped else None)
    rank, size = process_set.rank() or 0, process_set.size() or 1
    outputs = []
    for tensor in tensors:
        rows = ops.scattered_rows(tensor.shape[0], rank, size)
        outputs.append(new_array(tensor, (rows, *tensor.shape[1:]), number_of_dtype(tensor)))
    how = (op, 0, priority, float(prescale), float(postscale), WIRE_NONE, grouped)
    push(Operation(KIND_REDUCESCATTER, full, names, number, *how), codes, tensors, outputs)
    return outputs


@refusing
def reducescatter(
    tensor: Any,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """The reduction (Average or Sum) of all ranks' arrays, of which each rank gets its part of dim 0, cut in the order
    of ranks within the set; the first (dim 0 mod n) ranks get one row more."""
    scales = (prescale_factor, postscale_factor)
    return _scatter("reducescatter", [tensor], op, name, priority, process_set, *scales)[0]


@refusing
def grouped_reducescatter(
    tensors: Sequence[Any],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """``reducescatter`` of several arrays together."""
    scales = (prescale_factor, postscale_factor)
    return _scatter("grouped_reducescatter", tensors, op, name, priority, process_set, *scales)
