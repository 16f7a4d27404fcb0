"""Reports about the end of this process: to the peers about an uncaught exception, to the launcher why (``reasons``).

Each report is sent at most once, never blocks, and is sent by the rank itself, not by processes forked from it.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from horovod.common.contract.log import library_of
from horovod.common.contract.reasons import PIPE, Called, Ending, Left, Teller, explanation
from horovod.common.exceptions import HorovodInternalError, NoPlaceError, RanksDisagreeError

ENDED = "the process ended"
"""Reason given to the peers when the process ends without an exception; its progress may follow."""

Ended = tuple[str, int] | None
"""Result of ``Engine.ended``."""


def reason(error: BaseException | None, ended: Ended, members: Sequence[int] | None, rank: int) -> Ending:
    """Return why a process ends.

    Args:
        error: Exception that ends the process, or None.
        ended: Why the job's engine had ended before, or None.
        members: World ranks by rank of the job; None: all.
        rank: World rank of this process.
    """
    for one in _chain(error):
        if (told := explanation(one)) is not None:
            return told
    if not _follows(error, ended):
        return Ending(rank, "exit" if error is None else "own")
    if ended is None or ended[1] < 0:
        return Ending(rank, "failed")
    return Ending(rank, ended[0], [ended[1] if members is None else members[ended[1]]])


def _follows(error: BaseException | None, ended: Ended) -> bool:
    """Return True if the process ends because the job has ended.

    If the job has ended and there is no exception, the program has caught it and ends by itself.
    """
    if error is None:
        return ended is not None
    chain = list(_chain(error))
    if any(isinstance(one, RanksDisagreeError) for one in chain):
        return False  # a mistake in the program, made by this rank as much as by another
    return any(isinstance(one, HorovodInternalError) or (ended is not None and _of_tensorflow(one)) for one in chain)


def _of_tensorflow(error: BaseException) -> bool:
    """Return True for the error that TensorFlow raises when an operation fails because of a lost peer."""
    kind = type(error)
    return kind.__name__ == "UnknownError" and kind.__module__.startswith("tensorflow.")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error, its causes and the exceptions that were being handled when it was raised."""
    seen: set[int] = set()
    todo = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        todo += [one.__context__, one.__cause__]


class Watch:
    """Reporter of the end of this process.

    Args:
        about: Returns why the engine has ended (``Ended``) and the members of its job; called at the end.
    """

    def __init__(self, about: Callable[[], tuple[Ended, Sequence[int] | None]]) -> None:
        self._about = about
        self._teller = Teller("")
        self._rank = -1
        self._pid = -1
        self._told = False
        self._hooked = False
        self.reason = ENDED
        """Reason given to the peers when this process ends."""
        self.failed = False
        """True once an uncaught exception other than KeyboardInterrupt ends this process."""

    def begin(self, rank: int) -> None:
        """Report that this process calls ``hvd.init()`` as world rank ``rank``."""
        self._teller.close()
        self._teller = Teller(os.environ.get(PIPE, ""))
        self._rank, self._pid, self._told = rank, os.getpid(), False
        self._teller.tell(Called(rank, self._pid))
        if not self._hooked:
            self._hooked = True
            self._wrap_excepthook()

    def leave(self, why: str) -> None:
        """Report that this process leaves a job that has not ended."""
        if os.getpid() == self._pid:
            self._teller.tell(Left(self._rank, why))

    def at_exit(self) -> None:
        """Report the end at interpreter exit.

        An uncaught exception was reported earlier, unless the program replaced the hook.
        """
        self._tell(getattr(sys, "last_value", None))

    def forget(self) -> None:
        """Stop reporting in a forked child, which is not a rank."""
        self._teller.close()

    def _tell(self, error: BaseException | None) -> None:
        if self._told or os.getpid() != self._pid:
            return
        self._told = True
        ended, members = self._about()
        self._teller.tell(reason(error, ended, members, self._rank))

    def _wrap_excepthook(self) -> None:
        inner: Callable[..., Any] = sys.excepthook

        def remember(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
            self.reason = told_of(value, trace)
            self.failed = self.failed or not isinstance(value, KeyboardInterrupt)
            self._tell(value)
            if isinstance(value, NoPlaceError) and value.line:  # a traceback would look like a crash
                print(value.line, file=sys.stderr, flush=True)
            else:
                inner(kind, value, trace)

        sys.excepthook = remember


def told_of(error: BaseException, trace: TracebackType | None = None) -> str:
    """Return the description that peers get of an exception that ends a rank.

    Args:
        error: The exception.
        trace: Its traceback, if not ``error.__traceback__``.
    """
    text = str(error).strip().splitlines()
    said = f": {text[0][:200]}" if text else ""
    return f"it ended with {type(error).__name__}{said}{_where(error.__traceback__ if trace is None else trace)}"


def _where(trace: TracebackType | None) -> str:
    """Return the user's line that raised the exception or called the library function that did.

    Peers need it because the traceback itself may be on the stderr of another host. If there is no line of the user's,
    return the line that raised the exception.
    """
    frames = []
    while trace is not None:
        frames.append((trace.tb_frame.f_code, trace.tb_lineno))
        trace = trace.tb_next
    if not frames:
        return ""
    code, line = next((one for one in reversed(frames) if not library_of(one[0].co_filename)), frames[-1])
    return f" (in {code.co_name}, {os.path.basename(code.co_filename)}:{line})"
