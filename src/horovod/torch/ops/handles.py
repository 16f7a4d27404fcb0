"""Handles of operations in flight, which are integers, and operations without tensors: ``join`` and ``barrier``.

A handle's record keeps the tensors alive, because the engine reads and writes their memory until the work is done. An
operation can also be abandoned, by an interrupt during a wait, a failure while a device is still working, or a
shutdown. This module then keeps its tensors until the engine has finished with them.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from horovod._core import KIND_BARRIER
from horovod.common import dtypes
from horovod.common.exceptions import HorovodInternalError
from horovod.common.frontends import TORCH as frontend
from horovod.common.frontends import state
from horovod.common.ops import Sum
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch.ops import devices, repeats, tracing
from horovod.torch.ops.repeats import Repeat
from horovod.torch.ops.tensors import set_id
from horovod.torch.ops.tracing import state as _profiler

joins = 0
"""Number of completed calls of ``join``. It changes on all ranks at the same point of the program."""


def join(device: int = -1) -> int:
    """Declare that this rank has no more data, and block until every rank has called ``join``.

    Meanwhile this rank contributes zeros to allreduces with ``Sum`` and ``Average``. ``Average`` still divides by the
    number of all ranks. Joined ranks do not affect the results of ``Min``, ``Max`` and ``Product``. Other collectives
    fail while a rank has joined.

    Args:
        device (int): Ignored; accepted for compatibility with scripts written for GPUs.

    Returns:
        int: The rank that joined last.

    Raises:
        HorovodInternalError: If a rank was lost.
    """
    global joins
    work = frontend.require_engine().join()
    wait(work, None)
    joins += 1
    return work.sizes[0]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Block until every rank of the process set has called ``barrier``.

    Args:
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Raises:
        ValueError: If this rank is not in the process set, or Horovod is not initialized.
        HorovodInternalError: If a rank was lost.
    """
    number = set_id(process_set, "barrier")
    work = frontend.run(KIND_BARRIER, "barrier.noname", 0, 0, (), dtypes.UINT8, Sum, 0, 1.0, 1.0, number, None, "", 0)
    wait(work, None)


# Maximum seconds per wait. Between waits, Python runs signal handlers (Ctrl-C), and a forked child checks whether its
# engine still exists.
_SLICE_SECONDS = 0.5

_numbers = repeats.numbers
_records: dict[int, Repeat | tuple[Sequence[Any], Callable[[], Any], Any]] = repeats.records
_parked: dict[int, tuple[Any, Any]] = {}
_retained = repeats.retained
_before_next_wait = repeats.before_wait


def add(works: Sequence[Any], finish: Callable[[], Any], keep: Any) -> int:
    """Return a new handle for ``works``, which together form one operation.

    ``finish`` is called once all works are done, and returns the result. ``keep`` refers to the objects that must stay
    alive until then.
    """
    if _profiler._is_profiler_enabled:
        for work in works:
            tracing.record_submission(work)
    number = next(_numbers)
    _records[number] = (works, finish, keep)
    return number


def add_repeat(repeat: Repeat, source: Any, result: Any) -> int:
    """Return a new handle for a repeated operation that reads ``source`` and returns ``result``."""
    repeat.source = source
    repeat.result = result
    if _profiler._is_profiler_enabled:
        tracing.record_submission(repeat.work)
    number = next(_numbers)
    _records[number] = repeat
    return number


def then(handle: int, convert: Callable[[Any], Any]) -> None:
    """Make ``synchronize`` return ``convert(result)`` for this handle."""
    record = _records[handle]
    if isinstance(record, Repeat):
        repeat = record

        def finish() -> Any:
            result = repeat.result
            repeats.put_back(repeat)
            return convert(result)

        _records[handle] = ((repeat.work,), finish, (repeat.source, repeat.result))
        return
    works, last, keep = record
    _records[handle] = (works, lambda: convert(last()), keep)


def poll(handle: int) -> bool:
    """Return True if the operation is complete, so that ``synchronize`` will not block.

    Args:
        handle (int): Handle of an operation that has not been synchronized.

    Raises:
        ValueError: If the handle is unknown: it was already synchronized, was created before a shutdown, or never
            existed.
    """
    return wait_briefly(handle, 0.0)


def wait_briefly(handle: int, seconds: float) -> bool:
    """Wait for an operation for a limited time.

    The wait lasts at most ``seconds`` for each Work object of the operation.

    Returns:
        True if the operation has ended.

    Raises:
        ValueError: If the handle is unknown, as in ``poll``.
    """
    record = _records.get(handle)
    if record is None:
        raise ValueError(
            f"handle {handle!r} is unknown: it was already synchronized, or created before a shutdown, or never existed"
        )
    works = (record.work,) if isinstance(record, Repeat) else record[0]
    if seconds > 0:
        _run_before_wait()
        # Ignore the error here, because synchronize() will raise it.
        with contextlib.suppress(Exception):
            return all(work.wait(seconds) for work in works)
    return all(work.done() for work in works)


@repeats.finish_first
def synchronize(handle: int) -> Any:
    """Wait for an operation and return its result. A handle can be used once.

    Args:
        handle (int): Handle returned by an asynchronous operation.

    Returns:
        The operation's result, or None for an unknown handle.

    Raises:
        HorovodInternalError: If the operation failed.
    """
    record = _records.pop(handle, None)
    if record is None:
        return None
    if isinstance(record, Repeat):
        result = record.result
        wait(record.work, record)
        repeats.put_back(record)
        return result
    works, finish, keep = record
    wait_all(works, keep)
    return finish()


def synchronize_all(issued: Sequence[int]) -> list[Any]:
    """Wait for all handles, even if one fails.

    Returns:
        Results of the operations.

    Raises:
        Exception: If an operation failed; the first failure, raised after all operations have ended.
    """
    results: list[Any] = []
    failure: Exception | None = None
    for handle in issued:
        try:
            results.append(synchronize(handle))
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return results


def wait(work: Any, keep: Any, recorded: bool = False) -> None:
    """Block until ``work``, which uses the tensors in ``keep``, is done.

    Set ``recorded`` if a profiler already records this wait.

    Raises:
        HorovodInternalError: If the operation failed.
    """
    if _before_next_wait:
        _run_before_wait()
    if _profiler._is_profiler_enabled and not recorded:
        with tracing.record_wait(work):
            wait(work, keep, recorded=True)
        return
    try:
        while not work.wait(_SLICE_SECONDS):
            if frontend.forked:
                frontend.require_engine()  # raises
    except BaseException:
        park(work, keep)
        raise


def wait_for(repeat: Repeat, keep: Any) -> None:
    """Wait for a repeated operation, which uses ``keep``, and make it available for reuse.

    Raises:
        HorovodInternalError: If the operation failed.
    """
    if _before_next_wait or _profiler._is_profiler_enabled or not repeats.settle(repeat):
        wait(repeat.work, (repeat, keep))
        repeats.put_back(repeat)


def before_next_wait(act: Callable[[], None]) -> None:
    """Call ``act`` before this process next waits for an operation.

    This is meant for urgent actions, such as sending a message for which other ranks are waiting.
    """
    _before_next_wait.append(act)


def _run_before_wait() -> None:
    while _before_next_wait:
        _before_next_wait.pop(0)()


def wait_all(works: Sequence[Any], keep: Any) -> None:
    """Wait for all Work objects, even if one fails, then raise the first error.

    ``keep`` contains the tensors that the operations use.
    """
    failure: Exception | None = None
    for position, work in enumerate(works):
        try:
            wait(work, keep)
        except Exception as error:
            failure = failure or error
        except BaseException:
            for other in works[position + 1 :]:
                park(other, keep)
            raise
    if failure is not None:
        raise failure


def start(submit: Callable[[], Any], keep: Any) -> Any:
    """Call ``submit``, which passes the tensors in ``keep`` to the engine.

    The call can block briefly. If an interrupt (Ctrl-C) ends it, the Work is lost although the engine can still write
    to the tensors. The tensors are then kept until the job ends.

    Returns:
        Work of the engine.

    Raises:
        ValueError: If the engine rejects the operation.
        HorovodInternalError: If the engine has stopped.
    """
    try:
        return submit()
    except (ValueError, HorovodInternalError):
        # The engine has rejected the operation, so it does not use the tensors.
        raise
    except BaseException:
        _retained.append(keep)
        raise


def forget_all() -> None:
    """Invalidate all handles, but keep the memory of unfinished operations alive."""
    for record in list(_records.values()):
        if isinstance(record, Repeat):
            park(record.work, record)
            continue
        for work in record[0]:
            park(work, record[2])
    _records.clear()
    # If the engine is still running because another frontend uses it, keep the memory alive, because the engine can
    # still write to the memory.
    if state.engine is None:
        _retained.clear()
    _before_next_wait.clear()
    # Drop the Work objects, because each keeps its engine and the engine's device resources alive.
    repeats.idle.clear()
    _sweep()
    devices.forget_all()


def park(work: Any, keep: Any) -> None:
    """Keep objects alive until ``work`` no longer uses their memory.

    This is called when no caller waits for ``work``.
    """
    _sweep()
    if _uses_memory(work):
        _parked[next(_numbers)] = work, keep


def _sweep() -> None:
    # Iterate over a copy, because another thread can call park() at the same time.
    for number, (work, _) in list(_parked.items()):
        if not _uses_memory(work):
            _parked.pop(number, None)


def _uses_memory(work: Any) -> bool:
    # Check devices even if the work has failed, because kernels that were already launched may still use the work's
    # memory.
    return not work.done() or work.in_use()
