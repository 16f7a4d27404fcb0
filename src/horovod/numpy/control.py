"""The operations ``join`` and ``barrier``, and functions for handles."""

from typing import Any

from horovod._arrays.checks import set_id
from horovod._arrays.handles import Handle
from horovod._arrays.pending import Pending, start
from horovod.common import dtypes
from horovod.common.dtypes import class_name
from horovod.common.faces import NUMPY as face
from horovod.common.ops import Sum
from horovod.common.process_sets import ProcessSet, global_process_set


def join(device: int = -1) -> int:
    """Declare that this rank has no more data, and block until every rank has called ``join``.

    Meanwhile this rank contributes zeros to the other ranks' sums; ``Average`` still divides by the number of all
    ranks. It does not affect minima, maxima and products. Other collectives fail while a rank has joined.

    Args:
        device (int): Ignored; accepted for compatibility with scripts written for GPUs.

    Returns:
        int: The rank that joined last.

    Raises:
        HorovodInternalError: A rank was lost.
    """
    work = face.require_engine().join(face.number)
    return Pending(face, (work,), lambda works: works[0].sizes[0], None).result()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Block until every rank of the process set has called ``barrier``.

    Args:
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Raises:
        ValueError: This rank is not in the process set, or Horovod is not initialized.
        HorovodInternalError: A rank was lost.
    """
    from horovod._core import KIND_BARRIER

    number = set_id(face, process_set, "barrier")
    request = (KIND_BARRIER, "barrier.noname", 0, 0, (), dtypes.UINT8, Sum, 0, 1.0, 1.0, number, None, "", 0)
    start(face, [request], lambda works: None, None, blocking=True).result()


def poll(handle: Handle) -> bool:
    """Return True if the operation is complete, so that ``synchronize`` will not block.

    Args:
        handle (Handle): Handle of an operation.

    Raises:
        ValueError: ``handle`` is not a handle.
    """
    return _checked(handle, "poll").done()


def synchronize(handle: Handle) -> Any:
    """Wait for an operation and return its result, like ``handle.result()``. May be called repeatedly.

    Args:
        handle (Handle): Handle of an operation.

    Returns:
        The operation's result.

    Raises:
        ValueError: ``handle`` is not a handle.
        HorovodInternalError: Ranks disagree, or a rank was lost.
    """
    return _checked(handle, "synchronize").result()


def _checked(handle: Any, what: str) -> Handle:
    if not isinstance(handle, Handle):
        raise ValueError(
            f"{what}: handle must be one that an _async call returned, got {handle!r}, a {class_name(handle)}"
        )
    return handle
