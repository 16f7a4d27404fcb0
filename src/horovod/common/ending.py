"""Process exit: reports about it, stop signals, and protection against child processes joining as their parent's rank.

A rank sends an uncaught exception to its peers, and the reason for its exit to the launcher (``reasons``). Sending a
report never blocks. Each report is sent at most once, and only by the rank itself, not by forked children.

A process that a rank starts inherits the environment variables that identify the rank. Data loader workers that use
multiprocessing's "spawn" or "forkserver" import the training script again. If the script calls ``hvd.init()`` at its
top level, each worker would try to join as a rank: it would take the place of its rank, or wait for the other ranks. So
``init`` raises an error in such a process. docs/adr/0017-descendants-of-ranks.md explains the reasons.

A process that has joined is marked in two ways. A variable in its environment reaches all processes that it starts
later, even those whose parents have ended. The name of a file descriptor reaches processes that were started earlier,
such as a fork server, or that got an older environment. The mark contains the job's identity, so a rank can start
another job, which its child processes can join.
"""

import contextlib
import hashlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any

from horovod.common.contract.log import library_of
from horovod.common.contract.reasons import PIPE, Called, Ending, Left, Refused, ReportPipe, explanation
from horovod.common.contract.settings import BY_NAME, Settings
from horovod.common.contract.worker_env import WorkerEnv
from horovod.common.exceptions import HorovodInternalError, NoPlaceError, RanksDisagreeError
from horovod.common.frontends import Frontend
from horovod.common.objects import largest

ENDED = "the process ended"
"""Reason sent to the peers when the process exits without an exception. The progress can be appended."""

Ended = tuple[str, int] | None
"""Result of ``Engine.ended``."""


def reason(error: BaseException | None, ended: Ended, members: Sequence[int] | None, rank: int) -> Ending:
    """Create the launcher report with the reason for this process's exit.

    Args:
        error: Exception that ends the process, or None.
        ended: Reason why the job's engine ended earlier, or None.
        members: World rank of each rank of the job. None means that all world ranks form the job.
        rank: World rank of this process.
    """
    for one in _chain(error):
        if (known := explanation(one)) is not None:
            return known
    if not _follows(error, ended):
        return Ending(rank, "exit" if error is None else "own")
    if ended is None or ended[1] < 0:
        return Ending(rank, "failed")
    return Ending(rank, ended[0], [ended[1] if members is None else members[ended[1]]])


def _follows(error: BaseException | None, ended: Ended) -> bool:
    """Return True if the process exits because its job has ended.

    An exit without an exception counts if the job has ended, because the program may have caught the job's error.
    """
    if error is None:
        return ended is not None
    chain = list(_chain(error))
    if any(isinstance(one, RanksDisagreeError) for one in chain):
        return False  # the program itself caused the mismatch between ranks, so do not blame other ranks
    return any(isinstance(one, HorovodInternalError) or (ended is not None and _of_tensorflow(one)) for one in chain)


def _of_tensorflow(error: BaseException) -> bool:
    """Return True for a TensorFlow error about an operation that failed because a peer was lost."""
    kind = type(error)
    return kind.__name__ == "UnknownError" and kind.__module__.startswith("tensorflow.")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error, its causes, and the exceptions that were being handled when it was raised."""
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
    """Reports how this process exits.

    Args:
        about: Function that returns why the engine has ended (``Ended``) and the members of its job. Called when the
            process exits.
    """

    def __init__(self, about: Callable[[], tuple[Ended, Sequence[int] | None]]) -> None:
        self._about = about
        self._pipe = ReportPipe("")
        self._rank = -1
        self._pid = -1
        self._reported = False
        self._hooked = False
        self.reason = ENDED
        """Reason that this process sends to its peers when it ends."""
        self.failed = False
        """True if an uncaught exception other than KeyboardInterrupt ends this process."""

    def begin(self, rank: int) -> None:
        """Report that this process calls ``hvd.init()`` as world rank ``rank``."""
        self._pipe.close()
        self._pipe = ReportPipe(os.environ.get(PIPE, ""))
        self._rank, self._pid, self._reported = rank, os.getpid(), False
        self._pipe.send(Called(rank, self._pid))
        if not self._hooked:
            self._hooked = True
            self._wrap_excepthook()

    def leave(self, why: str) -> None:
        """Report that this process leaves a job that continues."""
        if os.getpid() == self._pid:
            self._pipe.send(Left(self._rank, why))

    def at_exit(self) -> None:
        """Report the process's exit when the interpreter exits.

        The exception hook has already reported an uncaught exception, unless the program has replaced the hook.
        """
        self._report(getattr(sys, "last_value", None))

    def forget(self) -> None:
        """Stop reporting in a forked child, which is not a rank."""
        self._pipe.close()

    def _report(self, error: BaseException | None) -> None:
        if self._reported or os.getpid() != self._pid:
            return
        self._reported = True
        ended, members = self._about()
        self._pipe.send(reason(error, ended, members, self._rank))

    def _wrap_excepthook(self) -> None:
        inner: Callable[..., Any] = sys.excepthook

        def remember(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
            self.reason = describe_error(value, trace)
            self.failed = self.failed or not isinstance(value, KeyboardInterrupt)
            self._report(value)
            if isinstance(value, NoPlaceError) and value.line:  # print no traceback, which would look like a crash
                print(value.line, file=sys.stderr, flush=True)
            else:
                inner(kind, value, trace)

        sys.excepthook = remember


def describe_error(error: BaseException, trace: TracebackType | None = None) -> str:
    """Describe the exception that ends this rank, for messages to its peers.

    Args:
        error: The exception.
        trace: Traceback of the exception. Default: ``error.__traceback__``.
    """
    text = str(error).strip().splitlines()
    detail = f": {text[0][:200]}" if text else ""
    return f"it ended with {type(error).__name__}{detail}{_where(error.__traceback__ if trace is None else trace)}"


def _where(trace: TracebackType | None) -> str:
    """Return the line of the user's code that raised the exception or called the library function that raised it.

    Messages to peers contain this line, because the traceback might be on another host's stderr. If no frame is in the
    user's code, return the line that raised the exception.
    """
    frames = []
    while trace is not None:
        frames.append((trace.tb_frame.f_code, trace.tb_lineno))
        trace = trace.tb_next
    if not frames:
        return ""
    code, line = next((one for one in reversed(frames) if not library_of(one[0].co_filename)), frames[-1])
    return f" (in {code.co_name}, {os.path.basename(code.co_filename)}:{line})"


MARK = "HOROVOD_RANK_PROCESS"
"""Environment variable with the value <pid of the rank>:<id of the rank in its job>."""
_NAME = "horovod-rank-"
_MEMFD = re.compile(r"/memfd:" + _NAME + r"([0-9a-f]+) \(deleted\)")

# File descriptor (at most one) whose name in /proc marks this process as a rank. Empty until it is created.
_markers: list[int] = []


def check_descent(env: WorkerEnv) -> None:
    """Check that this process does not descend from the rank described by ``env``.

    The error is also reported to the launcher. Otherwise, a rank might report only that a helper process has ended.

    Raises:
        ValueError: If this process descends from that rank. The message has advice.
    """
    rank = find_rank_above(env)
    if rank is None:
        return
    pipe = ReportPipe(os.environ.get(PIPE, ""))
    pipe.send(Refused(env.rank))
    pipe.close()
    variables = "HOROVOD_RANK, HOROVOD_SIZE, ..." if env.place is None else f"those of {env.place.launcher}"
    raise ValueError(
        f"init: this process (pid {os.getpid()}) was started by rank {env.rank} (pid {rank}) and is no rank itself, so "
        "it cannot join the job. A data loader's worker or another helper that multiprocessing starts by 'spawn' or "
        "'forkserver' imports the script again: put hvd.init() and all that trains below "
        '`if __name__ == "__main__":`. A program that is to run by itself has to be started without the job\'s '
        f"variables ({variables})"
    )


def find_rank_above(env: WorkerEnv) -> int | None:
    """Return the pid of the rank described by ``env`` if this process is a descendant of that rank, else None."""
    if env.size == 1 and env.worker is None:
        return None
    place = _place(env)
    rank = _marked(place) or next((pid for pid in _ancestors() if place in _names(pid)), None)
    return None if rank == os.getpid() else rank


def mark_rank_process(env: WorkerEnv) -> None:
    """Mark this process, so that ``find_rank_above`` recognizes its descendants."""
    if env.size == 1 and env.worker is None:
        return
    place = _place(env)
    os.environ[MARK] = f"{os.getpid()}:{place}"
    while _markers:
        os.close(_markers.pop())
    _markers.append(os.memfd_create(_NAME + place, os.MFD_CLOEXEC))


def _place(env: WorkerEnv) -> str:
    """Return an id for the rank that ``env`` describes. Processes that inherit the variables get the same id."""
    job = (env.place.launcher, env.place.job) if env.place is not None else (env.rendezvous_addr, env.rendezvous_port)
    # In an elastic job, a process's rank can change, so use the worker number instead.
    who = (env.rank, env.size) if env.worker is None else ("worker", env.worker)
    return hashlib.sha256(repr((*who, *job)).encode()).hexdigest()[:16]


def _marked(place: str) -> int | None:
    pid, _, named = os.environ.get(MARK, "").partition(":")
    return int(pid) if named == place and pid.isdecimal() else None


def _ancestors() -> Iterator[int]:
    pid = os.getpid()
    while pid > 1:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                # The command's name, in parentheses, can contain any character. The second field after it is the ppid.
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:  # the process has ended, so its ancestors are unknown
            return
        yield pid


def _names(pid: int) -> set[str]:
    """Return the rank ids in the names of a process's in-memory files, which ``mark_rank_process`` creates.

    The set is empty if the names cannot be read.
    """
    found = set()
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # another thread may have just closed the descriptor
                if match := _MEMFD.fullmatch(os.readlink(f"/proc/{pid}/fd/{number}")):
                    found.add(match[1])
    return found


# Stop signals are handled so that all ranks stop at the same step.
#
# A cluster manager may signal only some processes before it reclaims their machines. The ranks exchange the received
# signals with an allreduce, so all ranks get the same result under every launcher.

_SETTING = "HOROVOD_STOP_SIGNALS"
SAME = 2.0
"""Seconds within which a repeated signal counts as the same warning.

Slurm signals all processes of a step, and launchers that receive the signal forward it.
"""


def signals_named(text: str) -> list[signal.Signals]:
    """Parse a comma-separated list of signal names, with or without "SIG". Duplicates are dropped.

    Raises:
        ValueError: If a name is unknown or the signal cannot be caught.
    """
    found: dict[signal.Signals, None] = {}
    for name in filter(None, (part.strip().upper() for part in text.split(","))):
        number = getattr(signal.Signals, name if name.startswith("SIG") else f"SIG{name}", None)
        if number is None or number in (signal.SIGKILL, signal.SIGSTOP):
            raise ValueError(
                f"{_SETTING} must be names of signals that can be caught, such as {BY_NAME[_SETTING].default}, got "
                f"{name} in {text!r}"
            )
        found[number] = None
    return list(found)


class Stopping:
    """Stop signals that this process has received, and their handlers."""

    def __init__(self) -> None:
        self.received = 0
        """Number of the last received signal, or 0 if there was none."""
        # Time at which the stop signal in ``received`` first arrived.
        self._since = 0.0
        # Original handlers, by signal number. They are called too, and restored in forked processes.
        self._before: dict[int, Any] = {}
        self.listens = False
        """True if handlers are installed, even if the list of signals is empty."""
        self._sees_forks = False

    def listen(self, signals: list[signal.Signals]) -> None:
        """Handle these signals. A second signal ends the process immediately.

        Handlers installed by the program are called too.

        Raises:
            ValueError: If not called in the main thread, because only the main thread can install signal handlers.
        """
        if threading.current_thread() is not threading.main_thread():
            raise ValueError(
                "should_stop must be called first in the main thread, because other threads cannot catch signals; call "
                "it there once before training begins"
            )
        for number in signals:
            self._before[number] = signal.signal(number, self._on_signal)
        self.listens = True
        if not self._sees_forks:  # register only once, because forked processes inherit the registration
            self._sees_forks = True
            os.register_at_fork(after_in_child=self._leave)

    def _leave(self) -> None:
        """Restore the original handlers in a forked process, such as a data loader worker, so that signals end it."""
        before, self._before, self.listens = self._before, {}, False
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) == self._on_signal:
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        before, now = self._before.get(number), time.monotonic()
        again = self.received == number and now >= self._since + SAME
        if self.received != number:
            self._since = now
        self.received = number
        if callable(before):
            before(number, frame)
        elif again and before == signal.SIG_DFL:  # a second signal ends the process immediately
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


stopping = Stopping()
"""The only instance in this process."""


def should_stop(frontend: Frontend) -> bool:
    """Return True if any rank has received a stop signal. See ``HorovodBasics.should_stop``."""
    frontend.require_job()
    if not stopping.listens:
        stopping.listen(signals_named(Settings.from_environ().text(_SETTING)))
    return bool(largest(stopping.received, "horovod.should_stop", frontend))
