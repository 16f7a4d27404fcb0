"""Blocking collectives on NumPy arrays, for frontends whose values are, or can be viewed as, such arrays.

Inputs are not changed. All functions raise ValueError for invalid arguments (a dtype, a name in flight, a process set
without this rank, no init), and HorovodInternalError, which names tensor and ranks, if ranks disagree or a rank was
lost. ``face`` is the frontend that submits the operations. Names are full names, such as "allreduce.x", the same on all
ranks, or "" to match operations by call order.
"""

from collections.abc import Sequence
from typing import Any

from horovod._arrays.checks import Array, Reduction, check_reduction, code_of, root_of, set_id
from horovod._arrays.starting import (
    start_allgather,
    start_allreduce,
    start_alltoall,
    start_broadcast,
    start_reducescatter,
)
from horovod.common.faces import Face
from horovod.common.process_sets import ProcessSet

__all__ = [
    "Array",
    "Reduction",
    "allgather_all",
    "allreduce_all",
    "alltoall_all",
    "broadcast_all",
    "check_reduction",
    "code_of",
    "reducescatter_all",
    "root_of",
    "set_id",
]


def allreduce_all(
    face: Face, arrays: Sequence[Any], names: Sequence[str], reduction: Reduction, groups: Sequence[str] = ()
) -> list[Array]:
    """Reduce all arrays.

    ``groups`` has the name of each array's group or "", and may be empty. The arrays of a group complete together.
    """
    results: list[Array] = start_allreduce(face, arrays, names, reduction, groups, blocking=True).result()
    return results


def broadcast_all(
    face: Face, arrays: Sequence[Any], root_rank: int, names: Sequence[str], process_set: ProcessSet
) -> list[Array]:
    """Return the root's values of all arrays, on every rank. ``root_rank`` is a world rank."""
    if not arrays:
        return []
    results: list[Array] = start_broadcast(face, arrays, root_rank, names, process_set, blocking=True).result()
    return results


def allgather_all(
    face: Face, arrays: Sequence[Any], names: Sequence[str], process_set: ProcessSet, groups: Sequence[str] = ()
) -> list[Array]:
    """Return the arrays of all ranks, concatenated along dimension 0, in which they may differ."""
    results: list[Array] = start_allgather(face, arrays, names, process_set, groups, blocking=True).result()
    return results


def alltoall_all(
    face: Face, arrays: Sequence[Any], splits: Any, names: Sequence[str], process_set: ProcessSet
) -> tuple[list[Array], Array]:
    """Send rows of each array to all ranks.

    ``splits`` has the number of rows of each array for each rank of the set; None means equal parts.

    Returns:
        (received rows of each array in rank order, number of rows of the first array received from each rank).
    """
    *outputs, received = start_alltoall(face, arrays, splits, names, process_set, blocking=True).result()
    return outputs, received


def reducescatter_all(
    face: Face, arrays: Sequence[Any], names: Sequence[str], reduction: Reduction, groups: Sequence[str] = ()
) -> list[Array]:
    """Return this rank's rows of the reduction (Average or Sum) of all arrays.

    If the rows do not divide evenly, the first ranks get one row more.
    """
    results: list[Array] = start_reducescatter(face, arrays, names, reduction, groups, blocking=True).result()
    return results
