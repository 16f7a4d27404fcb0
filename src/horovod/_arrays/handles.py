"""Handles of operations in flight: awaitable futures that keep the operations' memory alive.

The memory of an operation stays alive until the operation is done, even if no caller waits for it. A caller of
``result`` runs the engine's progress loop. For ``await``, ``add_done_callback`` and ``concurrent.futures.wait``, a
background thread waits instead. The first of these calls starts the thread, which sleeps while no operation is in
flight.
"""

import asyncio
import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from horovod.common.exceptions import HorovodInternalError
from horovod.common.frontends import Frontend, state

# Maximum seconds per wait. After each wait, a forked child checks whether its engine still exists.
_SLICE_SECONDS = 0.5

Works = Sequence[Any]

# Unfinished operations that no caller is waiting for, with the memory that they use.
_parked: list[tuple[Works, Any]] = []
# Memory of submissions that Ctrl-C has interrupted. It is kept, because the engine may have accepted the operation and
# still use the memory.
_retained: list[Any] = []


class Pending:
    """Engine operations in flight that together produce one result."""

    __slots__ = ("_finish", "_frontend", "_keep", "_works")

    def __init__(self, frontend: Frontend, works: Works, finish: Callable[[Works], Any], keep: Any) -> None:
        """Wrap operations. ``finish`` returns their result, and ``keep`` keeps their memory alive."""
        self._frontend = frontend
        self._works = works
        self._finish = finish
        self._keep = keep

    @property
    def works(self) -> Works:
        """Engine operations that together produce the result."""
        return self._works

    def done(self) -> bool:
        """Return True if all operations have completed or failed. This never blocks."""
        return all(work.done() for work in self._works)

    def wait(self, timeout: float | None = None) -> bool:
        """Run the engine's progress loop until all operations are done, without raising their errors.

        Returns:
            bool: False if ``timeout`` seconds have passed first.

        Raises:
            HorovodInternalError: If this is a forked child.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for work in self._works:
            while True:
                left = _SLICE_SECONDS if deadline is None else min(_SLICE_SECONDS, deadline - time.monotonic())
                try:
                    if work.wait(max(left, 0.0)):
                        break
                except (ValueError, HorovodInternalError):
                    break
                if self._frontend.forked:
                    self._frontend.require_engine()  # raises
                if deadline is not None and time.monotonic() >= deadline:
                    return False
        return True

    def result(self) -> Any:
        """Wait for all operations, even if one fails, because they share memory.

        Raises:
            Exception: If an operation failed; the first failure.
        """
        self.wait()
        failure: Exception | None = None
        for work in self._works:
            try:
                work.wait(0.0)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return self._finish(self._works)

    def __del__(self) -> None:
        if not self.done():
            _parked.append((self._works, self._keep))


def start(
    frontend: Frontend,
    requests: Iterable[tuple[Any, ...]],
    finish: Callable[[Works], Any],
    keep: Any,
    blocking: bool = False,
) -> Pending:
    """Submit operations to the engine and return a ``Pending``.

    Each request is a tuple of arguments for ``Engine.submit``. If the engine rejects a request, this function submits
    the remaining requests anyway, because other ranks wait for them, and then raises the first error. With
    ``blocking``, it raises the error when the other operations are done.
    """
    _sweep()
    requests = list(requests)
    send = frontend.run if blocking and len(requests) == 1 else frontend.submit
    works: list[Any] = []
    refusal: Exception | None = None
    try:
        for request in requests:
            try:
                works.append(send(*request))
            except Exception as error:
                refusal = refusal or error
        pending = Pending(frontend, works, finish, keep)
        if refusal is not None and blocking:
            pending.wait()
    except BaseException:
        # Keep the memory alive. After an interrupt (Ctrl-C), the engine may have accepted an operation for which this
        # function has no Work object.
        hold(keep)
        raise
    if refusal is not None:
        raise refusal
    return pending


def hold(keep: Any) -> None:
    """Keep memory alive until the job ends, because an interrupted operation can still access it."""
    _retained.append(keep)


def forget() -> None:
    """Release the memory of interrupted operations. Call this after the frontend has shut down."""
    # Keep the memory while the engine is running: another frontend uses the engine, which may still write to the
    # memory.
    if state.engine is None:
        _retained.clear()
    _sweep()


def _sweep() -> None:
    # Iterate over a copy, because another thread may change the list at the same time.
    for entry in list(_parked):
        if all(work.done() for work in entry[0]):
            # Ignore the error, because another thread has already removed the entry.
            with contextlib.suppress(ValueError):
                _parked.remove(entry)


# Minimum and maximum seconds that the background thread waits for one operation before checking the others.
_MIN_SECONDS = 0.0005
_MAX_SECONDS = 0.02
_END_SECONDS = 2.0


class Handle(Future):  # type: ignore[type-arg]
    """Future of an operation in flight.

    ``result`` raises the error that the blocking operation would raise. An operation cannot be cancelled, because other
    ranks take part in it.
    """

    def __init__(self, pending: Pending) -> None:
        self._pending: Pending | None = pending
        super().__init__()
        self.set_running_or_notify_cancel()

    def done(self) -> bool:
        """Return True if the operation has completed or failed. This never blocks."""
        pending = self._pending
        if pending is not None and pending.done():
            self._settle()
        return super().done()

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the operation and return its result.

        Args:
            timeout (float, optional): Maximum seconds to wait. Default: no limit.

        Returns:
            The operation's result.

        Raises:
            concurrent.futures.TimeoutError: If ``timeout`` has passed.
            ValueError: If an argument was invalid.
            HorovodInternalError: If the ranks' calls do not match, or a rank was lost.
        """
        return super().result(None if self._drive(timeout) else 0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the operation and return its error, or None if it succeeds.

        Args:
            timeout (float, optional): Maximum seconds to wait. Default: no limit.

        Raises:
            concurrent.futures.TimeoutError: If ``timeout`` has passed.
        """
        return super().exception(None if self._drive(timeout) else 0)

    def add_done_callback(self, fn: Callable[["Future[Any]"], Any]) -> None:
        """Call ``fn(handle)`` once the operation is complete, in any thread.

        If the operation is already complete, the call happens immediately.

        Args:
            fn (Callable): Function of one argument, the handle.
        """
        super().add_done_callback(fn)
        if not self.done():
            _watcher.watch(self)

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.done():
            return (yield from asyncio.wrap_future(self).__await__())
        return self.result()

    # Functions of concurrent.futures, such as wait and as_completed, append to this list instead of adding callbacks.
    @property
    def _waiters(self) -> list[Any]:
        if self._pending is not None:
            _watcher.watch(self)
        return self._asked

    @_waiters.setter
    def _waiters(self, waiters: list[Any]) -> None:
        self._asked = waiters

    def _drive(self, timeout: float | None) -> bool:
        """Wait for the operation. Return False if ``timeout`` expires first."""
        pending = self._pending
        if pending is not None:
            if not pending.wait(timeout):
                return False
            self._settle()
        return True

    def _settle(self) -> None:
        """Set the result or error of a completed operation, and wake the threads waiting for it.

        If two threads call this, the second call does nothing.
        """
        with self._condition:
            pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            result = pending.result()
        except BaseException as error:
            self.set_exception(error)
        else:
            self.set_result(result)


class _Watcher:
    """Thread that waits for operations in order to run their callbacks."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._handles: list[Handle] = []
        self._thread: threading.Thread | None = None
        self._closing = False

    def watch(self, handle: Handle) -> None:
        with self._changed:
            if any(handle is known for known in self._handles):
                return
            self._handles.append(handle)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="horovod-handles", daemon=True)
                self._thread.start()
                # Exit functions run in reverse order of registration, so this one runs before those of the engine and
                # the interpreter.
                atexit.register(self._close)
            self._changed.notify()

    def _run(self) -> None:
        slice_seconds = _MIN_SECONDS
        while True:
            with self._changed:
                while not self._handles and not self._closing:
                    self._changed.wait()
                if self._closing:
                    return
                watched = list(self._handles)
            # Wait for the first operation only. The wait runs the engine's progress loop, which can complete the others
            # too.
            first = watched[0]._pending
            if first is not None:
                first.wait(slice_seconds)
            del first
            ended = [handle for handle in watched if handle.done()]
            with self._changed:
                self._handles = [h for h in self._handles if all(h is not other for other in ended)]
            slice_seconds = _MIN_SECONDS if ended else min(2 * slice_seconds, _MAX_SECONDS)
            watched.clear()
            ended.clear()

    def _close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(_END_SECONDS)


_watcher = _Watcher()


def _after_fork() -> None:
    global _watcher
    # In a forked child, create a new watcher, because the thread of the parent's watcher does not exist there.
    _watcher = _Watcher()


os.register_at_fork(after_in_child=_after_fork)
