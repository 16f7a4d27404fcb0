"""Collectives on Python objects (broadcast_object and allgather_object), shared by all frontends.

Objects are pickled by cloudpickle and exchanged only between authenticated members of a job. Unpickling can execute
arbitrary code, and data connections between hosts are usually not encrypted. So each object sent between hosts is
sealed (``object_seal``). The receiver checks the seal before it unpickles anything or allocates memory.
"""

import contextlib
import ctypes
import pickle
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from horovod.common import dtypes, ops
from horovod.common.contract.pickling import dumps
from horovod.common.exceptions import HorovodInternalError
from horovod.common.frontends import Frontend, State, state
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.security.object_seal import Call, Seals

_FAILED = b"\xff"  # first byte of an error message; a pickle begins with 0x80

_parked: list[Any] = []  # memory that interrupted operations still use, kept until the process exits


def loads(data: bytes | bytearray | memoryview) -> Any:
    """Unpickle the result of ``dumps``. Safe only for data from members of this job."""
    return pickle.loads(data)


def _dumps_or_reason(obj: Any) -> tuple[bytes, Exception | None]:
    """Pickle ``obj``. If that fails, return the error as text for the other ranks and as an exception."""
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
    frontend: Frontend | None = None,
) -> Any:
    """Broadcast an object from the root to every rank of the set. The root gets its own object back.

    Args:
        obj: Object to send. Only the root's object is used.
        root_rank: World rank of the root.
        name: Prefix of the two operations' names, ``<name>.sz`` and ``<name>.t``. Default: the name of the object's
            type, which must then be the same on all ranks.
        process_set: Ranks that take part.
        frontend: Frontend that submits the operations.

    Raises:
        ValueError: If the root or the set is invalid, or another thread is using the name. If the root's object cannot
            be pickled, all ranks raise it.
        HorovodInternalError: If a peer is lost.
    """  # noqa: DOC501
    from horovod import _core

    name = name or type(obj).__name__
    job = frontend or state
    seals = job.require_job().seals
    i_am_root = job.require_job().rank == root_rank
    data, error = _dumps_or_reason(obj) if i_am_root else (b"", None)
    operation, kind = f"broadcast_object {name!r}", _core.KIND_BROADCAST
    with seals.begin(operation, process_set.ranks or (), frontend.name if frontend is not None else "") as call:
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
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set, frontend: Frontend | None = None
) -> list[Any]:
    """Return the objects of all ranks of the set, ordered by rank within the set.

    Args:
        obj: This rank's object.
        name: Prefix of the operation's name. Default: the name of the object's type.
        process_set: Ranks that take part.
        frontend: Frontend that submits the operation.

    Raises:
        ValueError: If the set is invalid or another thread is using the name. If an object cannot be pickled, all ranks
            raise it, with the object's rank in the message.
        HorovodInternalError: If a peer is lost.
    """  # noqa: DOC501
    from horovod import _core

    name = name or type(obj).__name__
    job = frontend or state
    me, seals = (job.job.rank, job.job.seals) if job.job is not None else (0, Seals(b""))
    ranks = process_set.ranks or ()
    data, error = _dumps_or_reason(obj)
    own = data if error is None else _FAILED + data
    with seals.begin(f"allgather_object {name!r}", ranks, frontend.name if frontend is not None else "") as call:
        payload = call.seal(own, me, "object")
        kind, shape = _core.KIND_ALLGATHER, (len(payload),)
        work = _run(call, kind, f"allgather.{name}.t", payload, dtypes.UINT8, shape, 0, process_set, job)
    gathered = memoryview(work.output).cast("B")
    objects = []
    begin = 0
    for rank, size in zip(ranks, work.sizes, strict=True):
        part = memoryview(own)
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
    job: "Frontend | State",
) -> Any:
    # An empty bytearray has no address, and the engine does not need one.
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
    except BaseException:  # keep the memory after Ctrl-C, because the engine still uses it
        _parked.append((memory, view))
        raise


@contextlib.contextmanager
def rank0_first(what: str = "the block of rank0_first()") -> Iterator[None]:
    """Run a block, such as a download into a shared directory, first on rank 0 and then on the other ranks.

    The other ranks wait while rank 0 is alive, regardless of the settings for stalled operations. The block must not
    call collective operations.

    Example::

        with hvd.rank0_first():
            dataset = MNIST("data", download=True)

    Args:
        what (str): Name of the block in the error message of the other ranks.

    Raises:
        RuntimeError: If the block raised an error on rank 0; raised on the other ranks.
        HorovodInternalError: If a rank was lost.
    """
    if state.require_job().rank:
        outcome = None
        while outcome is None:
            outcome = broadcast_object(None, 0, "rank0_first")
        if outcome:
            raise RuntimeError(f"{what} failed on rank 0: {outcome}")
        yield
        return
    over = threading.Event()

    def keep_waiting() -> None:
        # Ignore a lost rank here, because the broadcast after this block raises the same error.
        with contextlib.suppress(HorovodInternalError):
            while not over.wait(1.0):
                broadcast_object(None, 0, "rank0_first")

    thread = threading.Thread(target=keep_waiting, name="horovod-rank0-first", daemon=True)
    thread.start()
    outcome = ""
    try:
        yield
    except BaseException as error:
        outcome = f"{type(error).__name__}: {error}"
        raise
    finally:
        over.set()
        thread.join()
        broadcast_object(outcome, 0, "rank0_first")


# Functions that exchange numbers between ranks in a single operation, without pickling.

_memory: dict[tuple[str, str, int], Any] = {}  # memory that interrupted operations still use, by operation


def numbers_of_rank_0(numbers: Sequence[float], name: str, frontend: Frontend) -> tuple[float, ...]:
    """Broadcast a list of numbers from rank 0.

    Args:
        numbers: This rank's numbers. All ranks must pass equally many.
        name: Name of the operation. Only one operation with this name can be in flight.
        frontend: Frontend that submits the operation.

    Raises:
        HorovodInternalError: If a peer is lost.
    """
    from horovod import _core

    count = len(numbers)
    memory = _memory.setdefault((frontend.name, name, count), (ctypes.c_double * count)())
    memory[:] = numbers
    at, kind = ctypes.addressof(memory), _core.KIND_BROADCAST
    frontend.run(kind, name, at, at, (count,), dtypes.FLOAT64, ops.Sum, 0, 1.0, 1.0, 0, None, "", 0).wait()
    return tuple(memory)


def largest(value: int, name: str, frontend: Frontend) -> int:
    """Return the maximum of all ranks' values, each between 0 and 255.

    Each rank sends only one byte, which is cheap enough for every step.

    Args:
        value: This rank's value.
        name: Name of the operation. Only one operation with this name can be in flight.
        frontend: Frontend that submits the operation.

    Raises:
        HorovodInternalError: If a peer is lost.
    """
    from horovod import _core

    word = _memory.setdefault((frontend.name, name, 0), ctypes.c_uint8())
    word.value = value
    at, kind = ctypes.addressof(word), _core.KIND_ALLREDUCE
    frontend.run(kind, name, at, at, (1,), dtypes.UINT8, ops.Max, 0, 1.0, 1.0, 0, None, "", 0).wait()
    return int(word.value)
