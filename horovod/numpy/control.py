"""join, barrier, and what can be done with handles."""

from typing import Any

from horovod._arrays.checks import set_id
from horovod._arrays.handles import Handle
from horovod._arrays.pending import Pending, start
from horovod.common import dtypes
from horovod.common.faces import NUMPY as face
from horovod.common.foreign import kind_of
from horovod.common.ops import Sum
from horovod.common.process_sets import ProcessSet, global_process_set


def join(device: int = -1) -> int:
    """Says that this rank has no more data; blocks until every rank has, and returns the rank that joined last.

    Until then it counts as zeros in the other ranks' sums, and Average still divides by the number of all ranks; it
    leaves their minima, maxima and products as they are.
    Other collectives fail while a rank has joined. ``device``: accepted for scripts written for GPUs. Raises
    HorovodInternalError when a peer is lost.
    """
    work = face.require_engine().join(face.number)
    return Pending(face, (work,), lambda works: works[0].sizes[0], None).result()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Blocks until every rank of the set has called it. Raises HorovodInternalError when a peer is lost."""
    from horovod._core import KIND_BARRIER

    number = set_id(face, process_set, "barrier")
    request = (KIND_BARRIER, "barrier.noname", 0, 0, (), dtypes.UINT8, Sum, 0, 1.0, 1.0, number, None, "", 0)
    start(face, [request], lambda works: None, None, blocking=True).result()


def poll(handle: Handle) -> bool:
    """Is the operation complete, so that ``synchronize`` will not block?"""
    return _checked(handle, "poll").done()


def synchronize(handle: Handle) -> Any:
    """Waits for an operation and returns its result, as ``handle.result()`` does, as often as it is called."""
    return _checked(handle, "synchronize").result()


def _checked(handle: Any, what: str) -> Handle:
    if not isinstance(handle, Handle):
        raise ValueError(
            f"{what}: handle is {handle!r}, a {kind_of(handle)}; accepted is what a call with _async has returned"
        )
    return handle
