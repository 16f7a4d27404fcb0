"""Operations of the MXNet frontend, each as a function.

Each function submits its arrays to MXNet's engine and returns immediately. MXNet runs the operation after earlier
operations on the same arrays and before later ones. Arrays are dense, in CPU memory. Operations with the same name run
one after another in call order.

Invalid arguments raise ArgumentError, which is an MXNetError and a ValueError. If ranks disagree or a rank is lost, the
next wait for an output array (``asnumpy()``, ``wait_to_read()``, ``mx.nd.waitall()``) raises InternalError, which is an
MXNetError and a HorovodInternalError.
"""

from collections.abc import Sequence
from typing import Any

import mxnet as mx

from horovod._arrays.collectives import root_of
from horovod._core import (
    KIND_ALLGATHER,
    KIND_ALLTOALL,
    KIND_BROADCAST,
    KIND_REDUCESCATTER,
    WIRE_NONE,
)
from horovod.common import ops
from horovod.common.ops import Average
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.mxnet._library import Arrival, Operation, arriving, new_array, push
from horovod.mxnet.arguments import (
    begin,
    code_of,
    codes_of,
    number_of_dtype,
    operation_names,
    refusing,
    splits_of,
)


def _gather(operation: str, tensors: Sequence[Any], name: str | None, priority: int, process_set: ProcessSet) -> Any:
    number, priority = begin(operation, name, priority, process_set)
    grouped = operation.startswith("grouped")
    codes = codes_of(tensors, operation) if grouped else [code_of(tensors[0], operation)]
    if not tensors:
        return []
    full, names = operation_names(operation, name, number, len(tensors) if grouped else None)
    stand_in = mx.nd.empty((1,))
    what = Operation(KIND_ALLGATHER, full, names, number, priority=priority, grouped=grouped)
    arrival = Arrival(stand_in, push(what, codes, tensors, [stand_in]))
    return [_member(arrival, i, tensor) for i, tensor in enumerate(tensors)]


def _member(arrival: Arrival, index: int, tensor: Any) -> Any:
    shape, number = tensor.shape, number_of_dtype(tensor)
    # Do not use `tensor` in the lambda function. The reference would keep the memory of the input array alive.
    like = new_array(tensor, (1,), number)
    return arriving(tensor, lambda: arrival.array(index, like, shape, number))


@refusing
def allgather(
    tensor: Any, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> Any:
    """Concatenate the arrays of all ranks along dimension 0, in rank order.

    The size of the result depends on the other ranks. The first access to the result, even to its shape, therefore
    waits until the operation is complete.

    Args:
        tensor (NDArray): Array with at least one dimension. All dimensions except the first must be the same on all
            ranks.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        priority (int): Priority in MXNet's engine; higher ones run first. Default: 0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        NDArray: Concatenated array. Raises the same errors as ``allreduce``.
    """
    return _gather("allgather", [tensor], name, priority, process_set)[0]


@refusing
def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Allgather several arrays as a group.

    No array is gathered until all ranks have submitted all arrays.

    Args:
        tensors (Sequence[NDArray]): Arrays, each as in ``allgather``.
        name (str, optional): Same as in ``allgather``.
        priority (int): Same as in ``allgather``. Default: 0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        list[NDArray]: Concatenated arrays. Raises the same errors as ``allreduce``.
    """
    gathered: list[Any] = _gather("grouped_allgather", tensors, name, priority, process_set)
    return gathered


def broadcast_to(
    tensor: Any, output: Any, root_rank: int, name: str | None, priority: int, process_set: ProcessSet
) -> Any:
    """Broadcast the root's array to ``output``. If ``output`` is None, create a new array.

    ``output`` can be ``tensor`` itself.

    Returns:
        ``output``, or the new array.
    """
    operation = "broadcast"
    number, priority = begin(operation, name, priority, process_set)
    root = root_of(root_rank, process_set, operation)
    code = code_of(tensor, operation, output is tensor)
    full, names = operation_names(operation, name, number, None)
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
    """Broadcast the root's array to all ranks, and return it as a new array.

    Args:
        tensor (NDArray): Array with the same shape and dtype on all ranks.
        root_rank (int): World rank of the root.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        priority (int): Priority in MXNet's engine; higher ones run first. Default: 0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        NDArray: The root's array. Raises the same errors as ``allreduce``.
    """
    return broadcast_to(tensor, None, root_rank, name, priority, process_set)


@refusing
def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Overwrite an array with the root's array, in place.

    Args:
        tensor (NDArray): Same as in ``broadcast``; receives the root's values.
        root_rank (int): World rank of the root.
        name (str, optional): Same as in ``broadcast``.
        priority (int): Same as in ``broadcast``. Default: 0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        NDArray: ``tensor``. Raises the same errors as ``allreduce``.
    """
    return broadcast_to(tensor, tensor, root_rank, name, priority, process_set)


@refusing
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send ``splits[i]`` rows to rank i of the process set, and return the received rows in rank order.

    As for ``allgather``, the first access to a result waits until the operation is complete. If ``splits`` is an
    NDArray, the call itself waits for its values.

    Args:
        tensor (NDArray): Array with at least one dimension.
        splits (Sequence[int] or NDArray, optional): Number of rows for each rank; a list, or a 1-D array of int32. Rows
            beyond their sum are not sent. Without it, dimension 0 is split into equal parts and must be a multiple of
            their number.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        priority (int): Priority in MXNet's engine; higher ones run first. Default: 0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        NDArray or tuple[NDArray, NDArray]: The output, or (output, received_splits) if ``splits`` is given.
        ``received_splits`` (int32) has the number of rows received from each rank. Raises the same errors
        as ``allreduce``.
    """
    number, priority = begin("alltoall", name, priority, process_set)
    code = code_of(tensor, "alltoall")
    given = splits_of(splits, tensor.shape[0] if tensor.shape else None, process_set)
    full, names = operation_names("alltoall", name, number, None)
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
    number, priority = begin(operation, name, priority, process_set)
    grouped = operation.startswith("grouped")
    codes = codes_of(tensors, operation) if grouped else [code_of(tensors[0], operation)]
    for tensor, code in zip(tensors, codes, strict=True):
        op = ops.check_scatter(operation, code, len(tensor.shape), op)
    ops.check_scale(operation, prescale, postscale)
    if not tensors:
        return []
    full, names = operation_names(operation, name, number, len(tensors) if grouped else None)
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
    """Reduce an array over all ranks and return this rank's part of the result along dimension 0.

    Each rank gets consecutive rows, in the order of ranks. If the rows do not divide evenly, the first ranks get one
    more.

    Args:
        tensor (NDArray): Array with at least one dimension. Shape and dtype must be the same on all ranks.
        op (int): ``Average`` (default) or ``Sum``.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        priority (int): Priority in MXNet's engine; higher ones run first. Default: 0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        prescale_factor (float): Factor applied to ``tensor`` before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the result. Default: 1.0.

    Returns:
        NDArray: This rank's rows. Raises the same errors as ``allreduce``.
    """
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
    """Reducescatter several arrays as a group.

    No array is reduced until all ranks have submitted all arrays.

    Args:
        tensors (Sequence[NDArray]): Arrays, each as in ``reducescatter``.
        op (int): ``Average`` (default) or ``Sum``.
        name (str, optional): Same as in ``reducescatter``.
        priority (int): Same as in ``reducescatter``. Default: 0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        prescale_factor (float): Factor applied to the arrays before the reduction. Default: 1.0.
        postscale_factor (float): Factor applied to the results. Default: 1.0.

    Returns:
        list[NDArray]: This rank's rows of each result. Raises the same errors as ``allreduce``.
    """
    scales = (prescale_factor, postscale_factor)
    return _scatter("grouped_reducescatter", tensors, op, name, priority, process_set, *scales)
