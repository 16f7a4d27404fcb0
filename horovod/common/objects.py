"""Python objects over the engine: broadcast_object and allgather_object for every face.

Objects travel pickled by cloudpickle, only between the authenticated members of one job. Unpickling runs what the bytes
say, and connections between hosts that carry data are not encrypted as a rule. So between hosts each object
is sealed (``object_seal``), and nothing is unpickled, and no memory allocated, before the seal has been checked.
"""

import ctypes
import pickle
from typing import Any

from horovod.common import dtypes, ops
from horovod.common.contract.pickling import dumps
from horovod.common.faces import Face
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.security.object_seal import Call, Seals
from horovod.common.state import State, state

_FAILED = b"\xff"  # begins a reason in place of an object; pickles begin with 0x80

_parked: list[Any] = []  # memory of interrupted operations


def loads(data: bytes | bytearray | memoryview) -> Any:
    """What ``dumps`` has pickled. For data of this job's members only."""
    return pickle.loads(data)


def _dumps_or_reason(obj: Any) -> tuple[bytes, Exception | None]:
    """``obj`` pickled, or why that failed, as text and as the exception: the other ranks must learn of it, not wait."""
    try:
        return dumps(obj), None
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:2000].encode(errors="replace"), error


def _not_pickled(operation: str, name: str, rank: int, reason: bytes | bytearray | memoryview) -> ValueError:
    text = bytes(reason).decode(errors="replace")
    return ValueError(f"{operation} {name!r}: the object of rank {rank} cannot be pickled: {text}")


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    face: Face | None = None,
) -> Any:
    """Returns the root's ``obj`` on every rank of the set (on the root: the object itself).

    ``root_rank``: world rank. ``name``: prefix of the two operations, ``<name>.sz`` and ``<name>.t``; default: the
    type's name, which then has to be the same on all ranks. ``face``: whose operations these are. Raises ValueError
    for a bad root or set, for a name that another thread is using, and on all ranks when the root's object cannot be
    pickled; HorovodInternalError when a peer is lost.
    """
    from horovod import _core

    name = name or type(obj).__name__
    job = face or state
    seals = job.require_job().seals
    i_am_root = job.require_job().rank == root_rank
    data, error = _dumps_or_reason(obj) if i_am_root else (b"", None)
    operation, kind = f"broadcast_object {name!r}", _core.KIND_BROADCAST
    with seals.begin(operation, process_set.ranks or (), face.name if face is not None else "") as call:
        payload, length = bytearray(), bytearray(8 + seals.overhead)
        if i_am_root:
            payload = call.seal(data if error is None else _FAILED + data, root_rank, "object")
            length = call.seal(len(payload).to_bytes(8, "little"), root_rank, "size")
        words = (len(length) // 8,)
        _run(call, kind, f"broadcast.{name}.sz", length, dtypes.INT64, words, root_rank, process_set, job)
        if not i_am_root:
            payload = bytearray(int.from_bytes(call.open(memoryview(length), root_rank, "size"), "little"))
        _run(call, kind, f"broadcast.{name}.t", payload, dtypes.UINT8, (len(payload),), root_rank, process_set, job)
        if i_am_root and error is None:
            return obj
        body = memoryview(_FAILED + data) if i_am_root else call.open(memoryview(payload), root_rank, "object")
    if body[:1] == _FAILED:
        raise _not_pickled("broadcast_object", name, root_rank, body[1:]) from error
    return loads(body)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set, face: Face | None = None
) -> list[Any]:
    """Returns the objects of all ranks of the set, by rank within the set. ``name``, ``face`` as for
    ``broadcast_object``.

    Raises ValueError on all ranks, naming the rank, when an object cannot be pickled; else like ``broadcast_object``.
    """
    from horovod import _core

    name = name or type(obj).__name__
    job = face or state
    me, seals = (job.job.rank, job.job.seals) if job.job is not None else (0, Seals(b""))  # then _run raises what fits
    ranks = process_set.ranks or ()
    data, error = _dumps_or_reason(obj)
    mine = data if error is None else _FAILED + data
    with seals.begin(f"allgather_object {name!r}", ranks, face.name if face is not None else "") as call:
        payload = call.seal(mine, me, "object")
        kind, shape = _core.KIND_ALLGATHER, (len(payload),)
        work = _run(call, kind, f"allgather.{name}.t", payload, dtypes.UINT8, shape, 0, process_set, job)
    gathered = memoryview(work.output).cast("B")
    objects = []
    begin = 0
    for rank, size in zip(ranks, work.sizes, strict=True):
        part = memoryview(mine)
        if rank != me:
            part = call.open(gathered[begin : begin + size], rank, "object")
        if part[:1] == _FAILED:
            raise _not_pickled("allgather_object", name, rank, part[1:]) from error
        objects.append(loads(part))
        begin += size
    return objects


def _run(
    call: Call,
    kind: int,
    name: str,
    memory: bytearray,
    dtype: int,
    shape: tuple[int, ...],
    root: int,
    process_set: ProcessSet,
    job: "Face | State",
) -> Any:
    # An empty bytearray has no address that could be taken, and none is needed.
    view = (ctypes.c_char * len(memory)).from_buffer(memory) if memory else None
    address = ctypes.addressof(view) if view is not None else 0
    try:
        number = process_set.process_set_id
        if number is None:
            raise ValueError(f"{name}: {process_set} is not registered")
        work = job.run(kind, name, address, address, shape, dtype, ops.Sum, root, 1.0, 1.0, number, None, "", 0)
        work.wait()
        return work
    except Exception:
        call.cancel()
        raise
    except BaseException:  # Ctrl-C ends the wait, not the operation, which still uses the memory
        _parked.append((memory, view))
        raise
