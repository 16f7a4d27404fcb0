"""How this process ends: remembers an uncaught exception for the peers, and tells the launcher why (``reasons``).

Everything here is told once at most, by the rank itself and not by processes forked from it, and never waits.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from horovod.common.contract.frames import library_of
from horovod.common.contract.reasons import PIPE, Called, Ending, Left, Teller, explanation
from horovod.common.exceptions import HorovodInternalError, NoPlaceError, RanksDisagreeError

ENDED = "the process ended"
"""What the peers of a process are told that ends without an exception; how far it had come may follow."""

Ended = tuple[str, int] | None
"""What ``Engine.ended`` says."""


def reason(error: BaseException | None, ended: Ended, members: Sequence[int] | None, rank: int) -> Ending:
    """Why a process ends, with the exception that ends it, if any. Pure.

    ``ended``: why the job's engine has ended before, if it has. ``members``: world ranks by rank of the job; None: all.
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
    """Is the end a consequence of the job's? Without an exception it was caught, and the program ends by itself."""
    if error is None:
        return ended is not None
    chain = list(_chain(error))
    if any(isinstance(one, RanksDisagreeError) for one in chain):
        return False  # a mistake in the program, this rank's as well as another one's
    return any(isinstance(one, HorovodInternalError) or (ended is not None and _of_tensorflow(one)) for one in chain)


def _of_tensorflow(error: BaseException) -> bool:
    """Is it TensorFlow's word for what a lost peer does to an operation?"""
    kind = type(error)
    return kind.__name__ == "UnknownError" and kind.__module__.startswith("tensorflow.")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """It, what it was raised from, and what was being handled then."""
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
    """Of this process. ``about``: asks the running engine (Ended) and who is in its job, at the end."""

    def __init__(self, about: Callable[[], tuple[Ended, Sequence[int] | None]]) -> None:
        self._about = about
        self._teller = Teller("")
        self._rank = -1
        self._pid = -1
        self._told = False
        self._hooked = False
        self.reason = ENDED
        """What the peers are told when this process ends."""
        self.failed = False
        """True once an uncaught exception, other than Ctrl-C, ends this process."""

    def begin(self, rank: int) -> None:
        """This process, ``rank`` of the world, calls hvd.init()."""
        self._teller.close()
        self._teller = Teller(os.environ.get(PIPE, ""))
        self._rank, self._pid, self._told = rank, os.getpid(), False
        self._teller.tell(Called(rank, self._pid))
        if not self._hooked:
            self._hooked = True
            self._wrap_excepthook()

    def leave(self, why: str) -> None:
        """It leaves the job that it was in, and that has not ended before."""
        if os.getpid() == self._pid:
            self._teller.tell(Left(self._rank, why))

    def at_exit(self) -> None:
        """Python ends. An exception has come by before, unless the program has replaced the hook."""
        self._tell(getattr(sys, "last_value", None))

    def forget(self) -> None:
        """In a forked child, which is no rank."""
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
    """What the peers are told of an exception that ends a rank. ``trace``: its traceback, if not its own."""
    text = str(error).strip().splitlines()
    said = f": {text[0][:200]}" if text else ""
    return f"it ended with {type(error).__name__}{said}{_where(error.__traceback__ if trace is None else trace)}"


def _where(trace: TracebackType | None) -> str:
    """The line of the user's that raised the exception, or called what did: the traceback itself is on the stderr of
    another host, maybe. Without one, the line that raised it."""
    frames = []
    while trace is not None:
        frames.append((trace.tb_frame.f_code, trace.tb_lineno))
        trace = trace.tb_next
    if not frames:
        return ""
    code, line = next((one for one in reversed(frames) if not library_of(one[0].co_filename)), frames[-1])
    return f" (in {code.co_name}, {os.path.basename(code.co_filename)}:{line})"
