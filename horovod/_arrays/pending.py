"""Operations under way, and the memory that they use: it lives until they are done, also when nobody waits for them any
more."""

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from horovod.common.exceptions import HorovodInternalError
from horovod.common.faces import Face
from horovod.common.state import state

# A wait is cut into slices so that a forked child finds out that nobody will ever answer.
_SLICE_SECONDS = 0.5

Works = Sequence[Any]

_parked: list[tuple[Works, Any]] = []  # of operations that nobody waits for
_held: list[Any] = []  # of calls that were interrupted while the engine took them


class Pending:
    """Operations that make one result together."""

    __slots__ = ("_face", "_finish", "_keep", "_works")

    def __init__(self, face: Face, works: Works, finish: Callable[[Works], Any], keep: Any) -> None:
        """``finish``: makes the result of the works once all are done. ``keep``: the memory that they use."""
        self._face = face
        self._works = works
        self._finish = finish
        self._keep = keep

    def done(self) -> bool:
        """Are all complete, successfully or not? Never blocks."""
        return all(work.done() for work in self._works)

    def wait(self, timeout: float | None = None) -> bool:
        """Drives the engine until all are done; False when ``timeout`` seconds have passed first. Whether they have
        failed ``result`` tells. Raises HorovodInternalError in a forked child."""
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
        """Waits for all, also when one fails, because they share the memory; raises the first failure."""
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
    """Submits all ``requests``, arguments of ``Engine.submit``. ``blocking``: the caller waits right away.

    One that is refused does not keep the others back, since the other ranks wait for those; the first refusal is raised
    in the end, for a blocking caller when the others are done.
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
    except BaseException:  # Ctrl-C may have come when the engine had taken what nothing here knows
        _held.append(keep)
        raise
    if refusal is not None:
        raise refusal
    return pending


def forget() -> None:
    """The face has left the job: lets go of the memory that nothing uses any more."""
    if state.engine is None:  # else another face is still in the job, and the engine may write on
        _held.clear()
    _sweep()


def _sweep() -> None:
    for entry in list(_parked):  # another thread may park something or do the same at this moment
        if all(work.done() for work in entry[0]):
            with contextlib.suppress(ValueError):  # that thread has let go of it
                _parked.remove(entry)
