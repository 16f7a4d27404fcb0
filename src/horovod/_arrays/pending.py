"""Operations in flight and their memory, which stays alive until they are done, even if no caller waits any more."""

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from horovod.common.exceptions import HorovodInternalError
from horovod.common.faces import Face
from horovod.common.state import state

# Waits are cut into slices so that a forked child notices that no engine will complete the operation.
_SLICE_SECONDS = 0.5

Works = Sequence[Any]

# Operations for which no caller waits any more.
_parked: list[tuple[Works, Any]] = []
# Memory of calls that were interrupted while the engine accepted them.
_held: list[Any] = []


class Pending:
    """Operations that produce one result together."""

    __slots__ = ("_face", "_finish", "_keep", "_works")

    def __init__(self, face: Face, works: Works, finish: Callable[[Works], Any], keep: Any) -> None:
        """Store operations. ``finish`` makes the result once all are done; ``keep`` is the memory that they use."""
        self._face = face
        self._works = works
        self._finish = finish
        self._keep = keep

    def done(self) -> bool:
        """Return True if all operations are complete, successfully or not. Never blocks."""
        return all(work.done() for work in self._works)

    def wait(self, timeout: float | None = None) -> bool:
        """Run the engine's progress loop until all operations are done. ``result`` tells whether they have failed.

        Returns:
            bool: False if ``timeout`` seconds have passed first.

        Raises:
            HorovodInternalError: This is a forked child.
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
                if self._face.forked:
                    self._face.require_engine()  # raises
                if deadline is not None and time.monotonic() >= deadline:
                    return False
        return True

    def result(self) -> Any:
        """Wait for all operations, even if one fails, because they share memory.

        Raises:
            Exception: The first failure.
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
    face: Face,
    requests: Iterable[tuple[Any, ...]],
    finish: Callable[[Works], Any],
    keep: Any,
    blocking: bool = False,
) -> Pending:
    """Submit all ``requests``, each a tuple of arguments for ``Engine.submit``.

    If one is rejected, the others are submitted nevertheless, because other ranks wait for them. The first rejection is
    raised at the end; if the caller blocks, after the other operations are done.
    """
    _sweep()
    requests = list(requests)
    send = face.run if blocking and len(requests) == 1 else face.submit
    works: list[Any] = []
    refusal: Exception | None = None
    try:
        for request in requests:
            try:
                works.append(send(*request))
            except Exception as error:
                refusal = refusal or error
        pending = Pending(face, works, finish, keep)
        if refusal is not None and blocking:
            pending.wait()
    except BaseException:  # Ctrl-C may have come after the engine accepted an operation that is not recorded yet
        _held.append(keep)
        raise
    if refusal is not None:
        raise refusal
    return pending


def forget() -> None:
    """Release memory that is no longer used, after the frontend has left the job."""
    if state.engine is None:  # otherwise another frontend is still in the job, and the engine may still write
        _held.clear()
    _sweep()


def _sweep() -> None:
    for entry in list(_parked):  # copy: another thread may change the list now
        if all(work.done() for work in entry[0]):
            with contextlib.suppress(ValueError):  # the other thread has already removed it
                _parked.remove(entry)
