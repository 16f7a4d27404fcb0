"""Collectives on NumPy arrays that wait, for the faces whose values are such, or can be seen as such without a copy.

All raise ValueError for what cannot work (a dtype, a name in flight, a process set without this rank, before init) and
HorovodInternalError, naming tensor and ranks, when ranks disagree or one is lost. ``name``: text that all ranks give
alike, or None: matched by the order of calls. Inputs are not changed. ``face``: whose operations these are.
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
    """Reduces all arrays at once. ``names``: full ones ("allreduce.x") or "". ``groups``: for each array the name of
    its group or "", empty for none; the arrays of a group complete together."""
    results: list[Array] = start_allreduce(face, arrays, names, reduction, groups, blocking=True).result()
    return results


def broadcast_all(
    face: Face, arrays: Sequence[Any], root_rank: int, names: Sequence[str], process_set: ProcessSet
) -> list[Array]:
    """The root's values of all arrays, on every rank. ``root_rank``: world rank. ``names``: full ones or ""."""
    if not arrays:
        return []
    results: list[Array] = start_broadcast(face, arrays, root_rank, names, process_set, blocking=True).result()
    return results


def allgather_all(
    face: Face, arrays: Sequence[Any], names: Sequence[str], process_set: ProcessSet, groups: Sequence[str] = ()
) -> list[Array]:
    """The arrays of all ranks, which may differ in dim 0, concatenated along it. ``names``, ``groups``: as above."""
    results: list[Array] = start_allgather(face, arrays, names, process_set, groups, blocking=True).result()
    return results


def alltoall_all(
    face: Face, arrays: Sequence[Any], splits: Any, names: Sequence[str], process_set: ProcessSet
) -> tuple[list[Array], Array]:
    """(of each array the rows that came, in the order of ranks; how many of the first came from each rank of the set:
    int32). ``splits``: rows of each array for each rank of the set, None: equal parts."""
    *outputs, received = start_alltoall(face, arrays, splits, names, process_set, blocking=True).result()
    return outputs, received


def reducescatter_all(
    face: Face, arrays: Sequence[Any], names: Sequence[str], reduction: Reduction, groups: Sequence[str] = ()
) -> list[Array]:
    """This rank's rows of the reduction (Average or Sum) of all arrays; the first ranks get one row more when dim 0
    does not divide. ``names``, ``groups``: as above."""
    results: list[Array] = start_reducescatter(face, arrays, names, reduction, groups, blocking=True).result()
    return results
