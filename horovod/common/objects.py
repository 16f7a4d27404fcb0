"""Python objects over the engine: broadcast_object and allgather_object for every face.

Objects travel pickled by cloudpickle, only between the authenticated members of one job.
"""

import ctypes
import io
import pickle
from typing import Any

import cloudpickle

from horovod.common import dtypes, ops
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.state import state

_parked: list[Any] = []  # memory of interrupted operations


def dumps(obj: Any) -> bytes:
    """Pickles anything that cloudpickle takes: functions and classes of scripts too."""
    stream = io.BytesIO()
    cloudpickle.dump(obj, stream, protocol=pickle.HIGHEST_PROTOCOL)
    return stream.getvalue()


def loads(data: bytes | bytearray | memoryview) -> Any:
    """Inverse of ``dumps``. For data of this job's members only."""
    return pickle.loads(data)


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns the root's ``obj`` on every rank of the set (on the root: the object itself).

    ``root_rank``: world rank. ``name``: prefix of the two operations, ``<name>.sz`` and ``<name>.t``; default: the
    type's name, which then has to be the same on all ranks. Raises ValueError for a bad root or set,
    HorovodInternalError when a peer is lost.
    """
    from horovod import _core

    name = name or type(obj).__name__
    i_am_root = state.require_job().rank == root_rank
    payload = bytearray(dumps(obj)) if i_am_root else bytearray()
    length = bytearray(len(payload).to_bytes(8, "little"))
    _run(_core.KIND_BROADCAST, f"broadcast.{name}.sz", length, dtypes.INT64, (1,), root_rank, process_set)
    if not i_am_root:
        payload = bytearray(int.from_bytes(length, "little"))
    _run(_core.KIND_BROADCAST, f"broadcast.{name}.t", payload, dtypes.UINT8, (len(payload),), root_rank, process_set)
    return obj if i_am_root else loads(payload)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Returns the objects of all ranks of the set, by rank within the set. ``name`` as for ``broadcast_object``."""
    from horovod import _core

    name = name or type(obj).__name__
    payload = bytearray(dumps(obj))
    work = _run(_core.KIND_ALLGATHER, f"allgather.{name}.t", payload, dtypes.UINT8, (len(payload),), 0, process_set)
    gathered = memoryview(work.output).cast("B")
    objects = []
    begin = 0
    for size in work.sizes:
        objects.append(loads(gathered[begin : begin + size]))
        begin += size
    return objects


def _run(
    kind: int, name: str, memory: bytearray, dtype: int, shape: tuple[int, ...], root: int, process_set: ProcessSet
) -> Any:
    number = process_set.process_set_id
    if number is None:
        raise ValueError(f"{name}: {process_set} is not registered")
    # An empty bytearray has no address that could be taken, and none is needed.
    view = (ctypes.c_char * len(memory)).from_buffer(memory) if memory else None
    address = ctypes.addressof(view) if view is not None else 0
    try:
        work = state.run(kind, name, address, address, shape, dtype, ops.Sum, root, 1.0, 1.0, number, None, "", 0)
        work.wait()
        return work
    except Exception:
        raise
    except BaseException:  # Ctrl-C ends the wait, not the operation, which still uses the memory
        _parked.append((memory, view))
        raise
