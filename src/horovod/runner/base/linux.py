"""Linux features that Python's standard library lacks, and a queue that collects signals.

The features are process trees, parent-death signals and sealed memory files. The queue wakes up a poll() loop.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from types import FrameType

from horovod.common.contract import kernel
from horovod.runner.base.job_result import AgentError, LaunchError

WARNING = signal.SIGUSR1
"""Signal by which batch systems warn that a job is about to end. The ranks get it too; it ends no process."""
_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGTTIN, WARNING)


class SignalQueue:
    """Queue of signals that stop a job or warn that it will be stopped soon. It installs handlers for these signals.

    If SIGHUP was ignored when the process started (nohup), it stays ignored. Only the main thread can use this class.

    Attributes:
        fd: Descriptor that is readable when a signal has arrived.
    """

    def __init__(self, only: Collection[int] | None = None) -> None:
        """Install the handlers. If `only` is given, handle only these signals."""
        self._numbers: list[int] = []
        self.received: set[int] = set()
        """All signals that have arrived since this queue was created."""
        self.fd, self._wake_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._wake_end, warn_on_full_buffer=False)
        if only is not None:
            for number in only:
                signal.signal(number, self._on_signal)
            return
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        # Do not replace handlers that the program itself has installed for these signals.
        for number in (signal.SIGTSTP, WARNING):
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, self._on_signal)
        # Ignore SIGTTIN. A read from the terminal then fails instead of stopping a launcher in the background.
        signal.signal(signal.SIGTTIN, signal.SIG_IGN)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._numbers.append(number)
        self.received.add(number)

    def take(self) -> list[int]:
        """Return all signals that have arrived since the last call."""
        try:
            os.read(self.fd, 4096)
        except BlockingIOError:
            pass
        taken, self._numbers = self._numbers, []
        return taken

    def close(self) -> None:
        """Stop receiving signals. The caller must restore the previous signal handlers."""
        signal.set_wakeup_fd(-1)
        os.close(self.fd)
        os.close(self._wake_end)


@contextlib.contextmanager
def restored_signals() -> Iterator[Callable[[], SignalQueue | None]]:
    """Yield a function that creates a `SignalQueue`, and restore all signal handlers at the end.

    Use this for jobs inside a program that keeps running. Outside the main thread, the function returns None, because
    only the main thread can handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    with _restored(_HANDLED), contextlib.ExitStack() as queues:
        yield lambda: queues.enter_context(contextlib.closing(SignalQueue()))


@contextlib.contextmanager
def interrupts(equals: Collection[str] = ()) -> Iterator[SignalQueue | None]:
    """Yield a queue that receives Ctrl-C while a job runs inside a program that continues after the job.

    Args:
        equals: Packages whose SIGINT handlers are treated like Python's default handler.

    Yields:
        The queue, or None outside the main thread or if the program has its own SIGINT handler.

    Raises:
        KeyboardInterrupt: If the user pressed Ctrl-C. It is raised at the end, after all ranks have exited.
    """
    handler = signal.getsignal(signal.SIGINT)
    package = str(getattr(handler, "__module__", "")).partition(".")[0]
    plain = handler is signal.default_int_handler or package in equals
    if not plain or threading.current_thread() is not threading.main_thread():
        yield None
        return
    with _restored([signal.SIGINT]), contextlib.closing(SignalQueue([signal.SIGINT])) as queue:
        yield queue
    if queue.received:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _restored(numbers: Collection[int]) -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in numbers}
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(wakeup)


_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_original_limit: tuple[int, int] | None = None
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(argument), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {argument}): {os.strerror(number)}")


def become_subreaper() -> None:
    """Make this process the parent of all its descendants that become orphans, even if they have their own sessions."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, sig: int) -> None:
    """Ask the kernel to send the signal `sig` to this process when its parent exits.

    `parent` is the expected parent's pid. If the parent has already exited, this process exits immediately.
    """
    _prctl(_PR_SET_PDEATHSIG, sig)
    if os.getppid() != parent:
        os._exit(128 + sig)


def dying_with(parent: int, cpus: Collection[int] = (), own_group: bool = False) -> Callable[[], None]:
    """Return a function to run in a child process between fork and exec.

    The function makes the kernel kill the child when process `parent` exits. If `cpus` is not empty, it also restricts
    the child to these CPUs. If `own_group` is true, the child leads a new process group of the same session.
    """

    def prepare() -> None:
        if own_group:
            os.setpgid(0, 0)
        die_with_parent(parent, signal.SIGKILL)
        if _original_limit is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, _original_limit)
        if cpus:
            os.sched_setaffinity(0, cpus)

    return prepare


def _process_table() -> list[tuple[int, int, str, int]]:
    """Return (pid, parent, state, process group) for each process on this host."""
    table = []
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                content = file.read()
        except OSError:  # The process has exited since /proc was listed.
            continue
        # The second field, the command name in parentheses, can contain parentheses, so split after the last one.
        state, parent, group = content[content.rindex(b")") + 2 :].split(b" ", 3)[:3]
        table.append((int(name), int(parent), state.decode("ascii"), int(group)))
    return table


def descendants(root: int, without: Collection[int] = (), group: int | None = None) -> list[int]:
    """Return the live descendants of a process, excluding zombies, with children before grandchildren.

    Args:
        root: Pid of the process.
        without: Pids to omit together with all their descendants.
        group: Process group. If given, return only its processes.
    """
    children: dict[int, list[tuple[int, bool]]] = {}
    for pid, parent, state, its_group in _process_table():
        if pid not in without:
            wanted = state not in "ZX" and group in (None, its_group)
            children.setdefault(parent, []).append((pid, wanted))
    found: list[int] = []
    level = [root]
    while level:
        below = [child for pid in level for child in children.get(pid, ())]
        found += [pid for pid, wanted in below if wanted]
        level = [pid for pid, _ in below]
    return found


def working_directory() -> bytes:
    """Return the path of the working directory. Raises LaunchError if the directory was removed."""
    try:
        return os.getcwdb()
    except OSError as error:
        raise LaunchError(
            f"the working directory of this program no longer exists ({error.strerror}), and the ranks would start in "
            "it; change to one that exists, for example with `cd`"
        ) from None


def check_proc() -> None:
    """Raise AgentError if /proc is not available on this host."""
    if not os.path.isdir("/proc/self"):
        raise AgentError(
            "/proc is not mounted there, by which processes of a job are watched and ended; "
            "`mount -t proc proc /proc`, as root, does so"
        )


def parents() -> dict[int, int]:
    """Return a mapping from the pid of each live process on this host to its parent's pid."""
    return {pid: parent for pid, parent, state, _ in _process_table() if state not in "ZX"}


def raise_descriptor_limit() -> None:
    """Raise the soft limit on open files to the hard limit, because many workers need many pipes and connections.

    Children that are started with `dying_with` get the original limit.
    """
    global _original_limit
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            _original_limit = (soft, hard)
        except (OSError, ValueError):
            pass


def send_signal(pid: int, sig: int) -> None:
    """Send a signal to a process. Unlike `os.kill`, ignore a process that has exited."""
    try:
        os.kill(pid, sig)
    except (ProcessLookupError, PermissionError):
        pass


def catches(pid: int, sig: int) -> bool:
    """Return True if the process has a handler for the signal. Return False if not, or if the process has exited."""
    return _in_mask(pid, "SigCgt:", sig)


def ignores(pid: int, sig: int) -> bool:
    """Return True if the process ignores the signal. Return False if it does not, or if the process has exited."""
    return _in_mask(pid, "SigIgn:", sig)


def _in_mask(pid: int, name: str, sig: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as lines:
            mask = next((line.split()[1] for line in lines if line.startswith(name)), "0")
    except OSError:
        return False
    return bool(int(mask, 16) >> (sig - 1) & 1)


def memory_file(name: str, content: bytes, sealed: bool) -> int:
    """Create an anonymous file that contains `content`, and return its descriptor.

    If `sealed` is True, the file can no longer be changed.

    Raises:
        OSError: If the file cannot be created or written.
    """
    fd = kernel.create_memory_file(name)
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    if sealed:
        fcntl.fcntl(
            fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        )
    return fd


SHM_DEFAULT = 64 << 20
"""Default size of /dev/shm under Docker, Podman and Kubernetes, in bytes. NCCL and data loaders soon fill it."""
