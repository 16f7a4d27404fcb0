"""Broadcast and allgather of Python objects."""

from typing import Any

from horovod.common import objects
from horovod.common.faces import MXNET as face
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.mxnet.arguments import refusing

__all__ = ["allgather_object", "broadcast_object"]


@refusing
def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the root's object on every rank of the process set. Blocks until it has arrived.

    Args:
        obj (Any): Object to send, which must support pickling. Ignored on the other ranks, which may pass None.
        root_rank (int): World rank of the root. Default: 0.
        name (str, optional): Prefix of the names of the two operations, ``<name>.sz`` and ``<name>.t``.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        Any: The root's object.

    Raises:
        HorovodInternalError: Ranks disagree, or a rank was lost.
    """
    return objects.broadcast_object(obj, root_rank, name or "broadcast_object", process_set, face)


@refusing
def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Return the objects of all ranks of the process set. Blocks until they have arrived.

    Args:
        obj (Any): Object of this rank, which must support pickling. Types may differ between ranks.
        name (str, optional): Name that matches the operation between ranks.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        list[Any]: Objects in the order of ranks within the process set.

    Raises:
        HorovodInternalError: Ranks disagree, or a rank was lost.
    """
    return objects.allgather_object(obj, name or "allgather_object", process_set, face)
