"""Handles: integers that stand for operations under way.

A handle's record keeps the tensors alive, because the engine reads and writes their memory until the work is done.
The same holds for operations that nobody waits for any more (an interrupt in the middle of a wait, a failure while a
device works on, a shutdown): their tensors are parked until then.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from horovod.common.exceptions import HorovodInternalError
from horovod.common.faces import TORCH as face
from horovod.common.state import state
from horovod.torch.ops import devices, profiling, repeats
from horovod.torch.ops.profiling import state as _profiler
from horovod.torch.ops.repeats import Repeat

# A wait is cut into slices so that Python runs signal handlers (Ctrl-C) and a forked child finds out that nobody will
# ever answer.
_SLICE_SECONDS = 0.5

_numbers = itertools.count()
_records: dict[int, Repeat | tuple[Sequence[Any], Callable[[], Any], Any]] = {}
_parked: dict[int, tuple[Any, Any]] = {}
_held: list[Any] = []
_before_next_wait: list[Callable[[], None]] = []


def add(works: Sequence[Any], finish: Callable[[], Any], keep: Any) -> int:
    """A new handle for ``works``. ``finish``: makes the result once all are done. ``keep``: what must live until
    then."""
    if _profiler._is_profiler_enabled:
        for work in works:
            profiling.mark(work)
    number = next(_numbers)
    _records[number] = (works, finish, keep)
    return number


def add_repeat(repeat: Repeat, source: Any, result: Any) -> int:
    """A new handle for the operation of ``repeat`` on the tensors ``source`` and ``result``, whose outcome is
    ``result``."""
    repeat.source = source
    repeat.result = result
    if _profiler._is_profiler_enabled:
        profiling.mark(repeat.work)
    number = next(_numbers)
    _records[number] = repeat
    return number


def then(handle: int, convert: Callable[[Any], Any]) -> None:
    """``synchronize`` is to return ``convert`` of what it would."""
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
    """Is the operation complete, so that ``synchronize`` will not block? Raises ValueError for an unknown handle."""
    record = _records.get(handle)
    if record is None:
        raise ValueError(
            f"handle {handle!r} is unknown: it was synchronised already, or issued before a shutdown, or never"
        )
    if isinstance(record, Repeat):
        return record.work.done()
    return all(work.done() for work in record[0])


def synchronize(handle: int) -> Any:
    """Waits for an operation and returns its result; None for an unknown handle. A handle can be used once.

    Raises HorovodInternalError when the operation failed.
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
    """Waits for every handle, also when one fails, and returns the results; then raises the first failure."""
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
    """Blocks until ``work`` is done. ``keep``: the tensors it uses. ``recorded``: a profiler knows of this wait.

    Raises HorovodInternalError when the operation failed.
    """
    if _before_next_wait:
        _run_before_wait()
    if _profiler._is_profiler_enabled and not recorded:
        with profiling.waiting(work):
            wait(work, keep, recorded=True)
        return
    try:
        while not work.wait(_SLICE_SECONDS):
            if face.forked:
                face.require_engine()  # raises
    except BaseException:
        park(work, keep)
        raise


def before_next_wait(act: Callable[[], None]) -> None:
    """Has ``act`` called when this process next comes to wait for an operation: others may wait for what it does."""
    _before_next_wait.append(act)


def _run_before_wait() -> None:
    while _before_next_wait:
        _before_next_wait.pop(0)()


def wait_all(works: Sequence[Any], keep: Any) -> None:
    """Waits for every work, also when one fails, because they share memory with ``keep``; then raises the first
    failure."""
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
    """``submit()``, which hands ``keep`` to the engine and waits for a moment. An interrupt that comes then (Ctrl-C)
    takes the Work along while the engine may still write: ``keep`` lives until the job ends."""
    try:
        return submit()
    except (ValueError, HorovodInternalError):
        raise  # the engine did not take it
    except BaseException:
        _held.append(keep)
        raise


def forget_all() -> None:
    """Forgets every handle; memory that operations still use, well or ended badly, stays alive."""
    for record in list(_records.values()):
        if isinstance(record, Repeat):
            park(record.work, record)
            continue
        for work in record[0]:
            park(work, record[2])
    _records.clear()
    if state.engine is None:  # else another face is still in the job, and the engine may write on
        _held.clear()
    _before_next_wait.clear()
    # A Work keeps its engine alive, and with it what that has on a device.
    repeats.idle.clear()
    _sweep()
    devices.forget_all()


def park(work: Any, keep: Any) -> None:
    """Keeps ``keep`` alive for as long as ``work``, which nobody waits for any more, may use its memory."""
    _sweep()
    if _uses_memory(work):
        _parked[next(_numbers)] = work, keep


def _sweep() -> None:
    for number, (work, _) in list(_parked.items()):  # another thread may park something at this moment
        if not _uses_memory(work):
            _parked.pop(number, None)


def _uses_memory(work: Any) -> bool:
    # On a device also one that has failed does: what was launched goes on for a while.
    return not work.done() or work.in_use()
