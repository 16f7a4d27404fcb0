"""Any Python object on every rank."""

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
    """Returns the root's ``obj`` on every rank of the set; the others may pass anything, None for example. It waits.

    ``name``: prefix of the two operations, ``<name>.sz`` and ``<name>.t``. See ``horovod.common.objects``.
    """
    return objects.broadcast_object(obj, root_rank, name or "broadcast_object", process_set, face)


@refusing
def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Returns the objects of all ranks of the set, by rank within it. Types may differ between ranks. It waits."""
    return objects.allgather_object(obj, name or "allgather_object", process_set, face)
