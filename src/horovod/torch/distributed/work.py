"""Work objects of process groups, and the thread that completes their futures."""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed.distributed_c10d import Work

from horovod.common.exceptions import HorovodInternalError
from horovod.torch.distributed import engine

_UNSET = timedelta(0)

_abandoned: list[tuple[Sequence[Any], Any]] = []
"""Works of operations that the program no longer refers to, with the memory that the engine still uses."""


class HorovodWork(Work):
    """Work of one process group operation, which can consist of several engine operations."""

    def __init__(
        self,
        call: str,
        group: Any,
        works: Sequence[Any],
        result: list[torch.Tensor],
        finish: Callable[[], None] | None = None,
        keep: Any = None,
        source: int = -1,
    ) -> None:
        """Create the Work of one process group operation.

        Args:
            call: Name of the c10d call, for messages.
            group: Process group, whose ``label`` and ``seconds`` are used.
            works: Operations of the engine.
            result: Output tensors.
            finish: Function that stores the result in the output tensors. Called once, when all works are done.
            keep: Objects that must stay alive until all works are done.
            source: For a receive, the sender's rank in the group.
        """
        super().__init__()
        self._call, self._label = call, group.label
        self._works, self._result, self._finish, self._keep = tuple(works), result, finish, keep
        self._source = source
        self._seconds = group.seconds
        self._deadline = time.monotonic() + group.seconds
        self._lock = threading.Lock()
        self._over = False
        self._error: Exception | None = None
        self._future: Any = None

    def wait(self, timeout: timedelta = _UNSET) -> bool:
        """Wait for the end of the operation.

        Args:
            timeout: Maximum time to wait. Default: the group's timeout, counted from the start of the operation.

        Returns:
            True, because errors are raised.

        Raises:
            torch.distributed.DistBackendError: If the operation failed or the timeout has passed.
        """
        seconds = timeout.total_seconds() if timeout > _UNSET else self._seconds
        deadline = time.monotonic() + seconds if timeout > _UNSET else self._deadline
        if not self._advance(deadline):
            self._time_out(seconds)
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Return True if the operation has completed or failed."""
        return self._over or (all(work.done() for work in self._works) and self._advance(time.monotonic() + 1.0))

    def is_success(self) -> bool:
        """Return True if the operation succeeded."""
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        """Return the error if the operation failed, or None."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """Return the output tensors."""
        return self._result

    def source_rank(self) -> int:
        """Return the sender of a received message, as a rank of the group."""
        return self._source

    _source_rank = source_rank

    def synchronize(self) -> None:
        """Wait until the operation is complete."""
        self.wait()

    def get_future(self) -> Any:
        """Return a future whose value is the list of output tensors."""
        with self._lock:
            if self._future is None:
                places = [one.device for one in self._result[:1] if not one.is_cpu]
                self._future = torch.futures.Future(devices=places)
                if self._over:
                    self._settle()
                else:
                    _completer.watch(self)
            return self._future

    def poll(self, seconds: float) -> bool:
        """Wait up to ``seconds``. Return True if the operation has finished or timed out."""
        if self._advance(min(self._deadline, time.monotonic() + seconds)):
            return True
        if time.monotonic() < self._deadline:
            return False
        self._time_out(self._seconds)
        return True

    def as_operation(self) -> "_Part":
        """Wrap this Work in the interface of the engine's Work, so that another HorovodWork can contain it."""
        return _Part(self)

    def __del__(self) -> None:
        if not getattr(self, "_over", True):
            _abandon(self._works, (self._keep, self._result))

    def _advance(self, deadline: float) -> bool:
        """Wait until the operation ends or ``deadline`` passes. Return True if the operation has ended."""
        if self._over:
            return True
        error: Exception | None = None
        try:
            for work in self._works:
                if not engine.wait(work, deadline):
                    return False
        except (ValueError, HorovodInternalError) as why:
            error = engine.failure(self._call, self._label, why)
            error.__cause__ = why
        self._end(error)
        return True

    def _time_out(self, seconds: float) -> None:
        why = (
            f"timed out after {seconds:g} s; the other ranks may not have made this call, or may be in another one. "
            "horovodrun --explain shows what each rank does"
        )
        _abandon(self._works, (self._keep, self._result))
        self._end(engine.failure(self._call, self._label, why))

    def _end(self, error: Exception | None) -> None:
        with self._lock:
            if self._over:
                return
            if error is None and self._finish is not None:
                try:
                    self._finish()
                except (ValueError, RuntimeError) as why:
                    error = engine.failure(self._call, self._label, why)
            self._error, self._over = error, True
            self._works = ()
            self._keep = self._finish = None
            self._settle()

    def _settle(self) -> None:
        if self._future is None or self._future.done():
            return
        if self._error is None:
            self._future.set_result(self._result)
        else:
            self._future.set_exception(self._error)


class _Part:
    """Adapter that gives a HorovodWork the interface of the engine's Work."""

    def __init__(self, work: HorovodWork) -> None:
        self._work = work

    def wait(self, timeout: float = -1.0) -> bool:
        work = self._work
        if not work._advance(time.monotonic() + timeout):
            return False
        if work._error is not None:
            raise ValueError(str(work._error))
        return True

    def done(self) -> bool:
        return self._work.is_completed()


def _abandon(works: Sequence[Any], keep: Any) -> None:
    """Keep the tensors of abandoned operations alive until the engine has finished ``works``."""
    _abandoned[:] = [one for one in _abandoned if not all(work.done() for work in one[0])]
    if not all(work.done() for work in works):
        _abandoned.append((works, keep))


class _Completer:
    """Thread that waits for operations with futures, such as DistributedDataParallel's buckets."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watched: list[Any] = []
        self._thread: threading.Thread | None = None

    def watch(self, one: Any) -> None:
        """Poll the operation ``one`` in this thread, calling ``one.poll(seconds)`` until it returns True."""
        with self._changed:
            self._watched.append(one)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="horovod-torch-distributed", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._watched:
                    self._changed.wait()
                watched = list(self._watched)
            # Block only on the first operation, because waiting for it runs the engine's progress loop. Operations
            # usually complete in order.
            over = [one for index, one in enumerate(watched) if one.poll(0.0 if index else 0.005)]
            with self._changed:
                self._watched = [one for one in self._watched if one not in over]


_completer = _Completer()
watch = _completer.watch
