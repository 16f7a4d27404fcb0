"""Broadcast, allgather and alltoall of arrays, ``join``, ``barrier``, and functions that operate on handles.

Common arguments and errors are described in ``reductions``. Values are only copied, so uint32, uint64 and the 8-bit
floats of ml_dtypes are supported too.
"""

from collections.abc import Sequence
from typing import Any

from horovod._arrays.checks import label_of, set_id
from horovod._arrays.collectives import start_allgather, start_alltoall, start_broadcast
from horovod._arrays.handles import Handle, Pending, start
from horovod.common import dtypes
from horovod.common.dtypes import class_name
from horovod.common.frontends import NUMPY as frontend
from horovod.common.ops import Sum, wire_name
from horovod.common.ops import grouped_names as group_names
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.numpy.arguments import Argument, Array, take, take_all


def _take(tensor: Any, operation: str, name: str | None, in_place: bool = False) -> Argument:
    return take(tensor, label_of(frontend, wire_name(operation, name), operation), in_place)


def _broadcast(
    tensor: Any, root_rank: int, name: str | None, process_set: ProcessSet, in_place: bool, blocking: bool
) -> Pending:
    argument = _take(tensor, "broadcast", name, in_place)
    return start_broadcast(
        frontend,
        [argument.array],
        root_rank,
        [wire_name("broadcast", name)],
        process_set,
        targets=[argument.array] if in_place else None,
        then=lambda results: argument.put_back(results[0]) if in_place else results[0],
        blocking=blocking,
    )


def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """Broadcast the root's array to all ranks, and return it as a new array.

    Args:
        tensor (array): Array with the same shape and dtype on all ranks.
        root_rank (int): World rank of the root, which must be in ``process_set``.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        numpy.ndarray: The root's array.

    Raises:
        ValueError: If an argument is invalid, or Horovod is not initialized.
        HorovodInternalError: If the ranks' calls do not match, or a rank was lost.
    """
    return _broadcast(tensor, root_rank, name, process_set, in_place=False, blocking=True).result()


def broadcast_(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Overwrite an array with the root's array, in place.

    Args:
        tensor (array): Same as in ``broadcast``; receives the root's values.
        root_rank (int): World rank of the root.
        name (str, optional): Same as in ``broadcast``.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        array: ``tensor``. Raises the same errors as ``broadcast``.
    """
    return _broadcast(tensor, root_rank, name, process_set, in_place=True, blocking=True).result()


def broadcast_async(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start a broadcast whose result is a new array, without waiting.

    Args:
        tensor (array): Same as in ``broadcast``. Do not change it before the handle is done.
        root_rank (int): World rank of the root.
        name (str, optional): Same as in ``broadcast``.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        Handle: Future of the root's array.
    """
    return Handle(_broadcast(tensor, root_rank, name, process_set, in_place=False, blocking=False))


def broadcast_async_(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start a broadcast in place, without waiting.

    Args:
        tensor (array): Same as in ``broadcast``. It is overwritten with the root's values. Do not use it before the
        handle is done.
        root_rank (int): World rank of the root.
        name (str, optional): Same as in ``broadcast``.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        Handle: Future of ``tensor``.
    """
    return Handle(_broadcast(tensor, root_rank, name, process_set, in_place=True, blocking=False))


def _allgather(tensor: Any, name: str | None, process_set: ProcessSet, blocking: bool) -> Pending:
    array = _take(tensor, "allgather", name).array
    names = [wire_name("allgather", name)]
    return start_allgather(frontend, [array], names, process_set, then=lambda r: r[0], blocking=blocking)


def allgather(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Array:
    """Concatenate the arrays of all ranks along dimension 0, in rank order.

    Args:
        tensor (array): Array with at least one dimension. All dimensions except the first must be the same on all
            ranks.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        numpy.ndarray: Concatenated array.

    Raises:
        ValueError: If an argument is invalid, or Horovod is not initialized.
        HorovodInternalError: If a rank passed a 0-dimensional array, ranks disagree in another way, or a rank was lost.
    """
    return _allgather(tensor, name, process_set, blocking=True).result()


def allgather_async(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Start an allgather of an array, without waiting.

    Args:
        tensor (array): Same as in ``allgather``. Do not change it before the handle is done.
        name (str, optional): Same as in ``allgather``.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        Handle: Future of the concatenated array.
    """
    return Handle(_allgather(tensor, name, process_set, blocking=False))


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Array]:
    """Allgather several arrays as a group.

    No array is gathered until all ranks have submitted all arrays.

    Args:
        tensors (Sequence[array]): Arrays, each as in ``allgather``.
        name (str, optional): Same as in ``allgather``.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        list[numpy.ndarray]: Concatenated arrays. Raises the same errors as ``allgather``.
    """
    return grouped_allgather_async(tensors, name, process_set).result()


def grouped_allgather_async(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start an allgather of several arrays as a group, without waiting.

    Args:
        tensors (Sequence[array]): Arrays, each as in ``allgather``. Do not change them before the handle is done.
        name (str, optional): Same as in ``allgather``.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        Handle: Future of the list of concatenated arrays.
    """
    what = label_of(frontend, wire_name("grouped_allgather", name), "grouped_allgather")
    arrays = [given.array for given in take_all(tensors, what)]
    if not arrays:
        return Handle(start(frontend, [], lambda works: [], None))
    number = set_id(frontend, process_set, "grouped_allgather")
    group, members = group_names(frontend, "grouped_allgather", name, len(arrays), number)
    return Handle(start_allgather(frontend, arrays, members, process_set, [group] * len(arrays)))


def _alltoall(tensor: Any, splits: Any, name: str | None, process_set: ProcessSet, blocking: bool) -> Pending:
    array = _take(tensor, "alltoall", name).array
    names = [wire_name("alltoall", name)]
    return start_alltoall(frontend, [array], splits, names, process_set, then=tuple, blocking=blocking)


def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array | tuple[Array, Array]:
    """Send a block of rows to each rank, and return the received blocks concatenated in rank order.

    Args:
        tensor (array): Array with at least one dimension.
        splits (Sequence[int] or array, optional): Number of rows for each rank of the process set. Rows beyond their
            sum are not sent. Without it, dimension 0 is split into equal parts.
        name (str, optional): Name that identifies the operation on all ranks. Unnamed operations are matched by call
            order.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        numpy.ndarray or tuple[numpy.ndarray, numpy.ndarray]: The output, or (output, received_splits) if ``splits`` is
        given. ``received_splits`` has the number of rows received from each rank, as int32, or as int64 if a rank sends
        2^31 rows or more.

    Raises:
        ValueError: If an argument is invalid, or Horovod is not initialized.
        HorovodInternalError: If the ranks' calls do not match, or a rank was lost.
    """
    output, received = _alltoall(tensor, splits, name, process_set, blocking=True).result()
    return output if splits is None else (output, received)


def alltoall_async(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start an alltoall of an array, without waiting.

    Args:
        tensor (array): Same as in ``alltoall``. Do not change it before the handle is done.
        splits (Sequence[int] or array, optional): Same as in ``alltoall``.
        name (str, optional): Same as in ``alltoall``.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        Handle: Future of the pair (output, received_splits), also without ``splits``.
    """
    return Handle(_alltoall(tensor, splits, name, process_set, blocking=False))


def join(device: int = -1) -> int:
    """Declare that this rank has no more data, and block until every rank has called ``join``.

    Meanwhile this rank contributes zeros to allreduces with ``Sum`` and ``Average``. ``Average`` still divides by the
    number of all ranks. Joined ranks do not affect the results of ``Min``, ``Max`` and ``Product``. Other collectives
    fail while a rank has joined.

    Args:
        device (int): Ignored; accepted for compatibility with scripts written for GPUs.

    Returns:
        int: The rank that joined last.

    Raises:
        HorovodInternalError: If a rank was lost.
    """
    work = frontend.require_engine().join(frontend.number)
    return Pending(frontend, (work,), lambda works: works[0].sizes[0], None).result()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Block until every rank of the process set has called ``barrier``.

    Args:
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Raises:
        ValueError: If this rank is not in the process set, or Horovod is not initialized.
        HorovodInternalError: If a rank was lost.
    """
    from horovod._core import KIND_BARRIER

    number = set_id(frontend, process_set, "barrier")
    request = (KIND_BARRIER, "barrier.noname", 0, 0, (), dtypes.UINT8, Sum, 0, 1.0, 1.0, number, None, "", 0)
    start(frontend, [request], lambda works: None, None, blocking=True).result()


def poll(handle: Handle) -> bool:
    """Return True if the operation is complete, so that ``synchronize`` will not block.

    Args:
        handle (Handle): Handle of an operation.

    Raises:
        ValueError: If ``handle`` is not a handle.
    """
    return _checked(handle, "poll").done()


def synchronize(handle: Handle) -> Any:
    """Wait for an operation and return its result, like ``handle.result()``.

    This function can be called several times for the same handle.

    Args:
        handle (Handle): Handle of an operation.

    Returns:
        The operation's result.

    Raises:
        ValueError: If ``handle`` is not a handle.
        HorovodInternalError: If the ranks' calls do not match, or a rank was lost.
    """
    return _checked(handle, "synchronize").result()


def _checked(handle: Any, what: str) -> Handle:
    if not isinstance(handle, Handle):
        raise ValueError(
            f"{what}: handle must be one that an _async call returned, got {handle!r}, a {class_name(handle)}"
        )
    return handle
