"""broadcast, allgather and alltoall of arrays: what moves values and computes nothing. Arguments and errors as in
``reductions``; uint32, uint64 and the 8-bit floats of ml_dtypes can travel, too."""

from collections.abc import Sequence
from typing import Any

from horovod._arrays.checks import set_id, whose
from horovod._arrays.handles import Handle
from horovod._arrays.pending import Pending, start
from horovod._arrays.starting import start_allgather, start_alltoall, start_broadcast
from horovod.common.faces import NUMPY as face
from horovod.common.groups import names as group_names
from horovod.common.ops import wire_name
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.numpy.arguments import Array, Given, take, take_all


def _take(tensor: Any, operation: str, name: str | None, in_place: bool = False) -> Given:
    return take(tensor, whose(face, wire_name(operation, name), operation), in_place)


def _broadcast(
    tensor: Any, root_rank: int, name: str | None, process_set: ProcessSet, in_place: bool, blocking: bool
) -> Pending:
    given = _take(tensor, "broadcast", name, in_place)
    return start_broadcast(
        face,
        [given.array],
        root_rank,
        [wire_name("broadcast", name)],
        process_set,
        targets=[given.array] if in_place else None,
        then=lambda results: given.put_back(results[0]) if in_place else results[0],
        blocking=blocking,
    )


def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """The root's array, as a new one. ``root_rank``: WORLD rank, also within a process set. ``tensor``: of equal shape
    and dtype on all ranks."""
    return _broadcast(tensor, root_rank, name, process_set, in_place=False, blocking=True).result()


def broadcast_(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Broadcast in place; returns ``tensor``."""
    return _broadcast(tensor, root_rank, name, process_set, in_place=True, blocking=True).result()


def broadcast_async(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Starts a broadcast into a new array."""
    return Handle(_broadcast(tensor, root_rank, name, process_set, in_place=False, blocking=False))


def broadcast_async_(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Starts a broadcast in place; the handle's result is ``tensor``, which has its values only then."""
    return Handle(_broadcast(tensor, root_rank, name, process_set, in_place=True, blocking=False))


def _allgather(tensor: Any, name: str | None, process_set: ProcessSet, blocking: bool) -> Pending:
    array = _take(tensor, "allgather", name).array
    names = [wire_name("allgather", name)]
    return start_allgather(face, [array], names, process_set, then=lambda r: r[0], blocking=blocking)


def allgather(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Array:
    """The arrays of all ranks, concatenated along dim 0 in the order of ranks; they may differ in dim 0. A 0-dim array
    on any rank fails on every rank with HorovodInternalError."""
    return _allgather(tensor, name, process_set, blocking=True).result()


def allgather_async(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Starts an allgather."""
    return Handle(_allgather(tensor, name, process_set, blocking=False))


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Array]:
    """Allgather of several arrays that run and complete together."""
    return grouped_allgather_async(tensors, name, process_set).result()


def grouped_allgather_async(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Starts an allgather of several arrays together; one handle, whose result is a list."""
    what = whose(face, wire_name("grouped_allgather", name), "grouped_allgather")
    arrays = [given.array for given in take_all(tensors, what)]
    if not arrays:
        return Handle(start(face, [], lambda works: [], None))
    number = set_id(face, process_set, "grouped_allgather")
    group, members = group_names(face, "grouped_allgather", name, len(arrays), number)
    return Handle(start_allgather(face, arrays, members, process_set, [group] * len(arrays)))


def _alltoall(tensor: Any, splits: Any, name: str | None, process_set: ProcessSet, blocking: bool) -> Pending:
    array = _take(tensor, "alltoall", name).array
    names = [wire_name("alltoall", name)]
    return start_alltoall(face, [array], splits, names, process_set, then=tuple, blocking=blocking)


def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array | tuple[Array, Array]:
    """Every rank sends a block of rows to every rank; what arrives is concatenated in the order of ranks.

    ``splits``: list or 1-D array of integers, the rows that each rank of the set gets; rows beyond their sum stay
    behind. Without splits dim 0 is cut into equal parts. Returns the output, or (output, received_splits) when splits
    are given; the received splits are int32, or int64 where a rank sends 2^31 rows or more.
    """
    output, received = _alltoall(tensor, splits, name, process_set, blocking=True).result()
    return output if splits is None else (output, received)


def alltoall_async(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Starts an alltoall. The result is always (output, received_splits)."""
    return Handle(_alltoall(tensor, splits, name, process_set, blocking=False))
