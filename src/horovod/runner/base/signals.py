"""Queue that collects signals and wakes up a poll() loop."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from types import FrameType

WARNING = signal.SIGUSR1
"""Signal by which batch systems warn that a job is about to end. The ranks get it too; it ends no process."""
_TAKEN = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGTTIN, WARNING)


class SignalQueue:
    """Queue of signals that stop a job or warn that it will be stopped soon. It installs handlers for these signals.

    If SIGHUP was ignored at the start of the process (nohup), it stays ignored. Only the main thread can use this
    class.

    Attributes:
        fd: Descriptor that is readable when a signal has arrived.
    """

    def __init__(self, only: Collection[int] | None = None) -> None:
        """Install the handlers. If `only` is given, handle only these signals."""
        self._numbers: list[int] = []
        self.taken: set[int] = set()
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
        # Ignore SIGTTIN, because it would stop a background launcher that reads from the terminal. The read fails
        # instead.
        signal.signal(signal.SIGTTIN, signal.SIG_IGN)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._numbers.append(number)
        self.taken.add(number)

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
def given_back() -> Iterator[Callable[[], SignalQueue | None]]:
    """Yield a function that creates a `SignalQueue`, and restore all signal handlers at the end.

    Use this for jobs inside a program that keeps running. Outside the main thread, the function returns None, because
    only the main thread can handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    with _restored(_TAKEN), contextlib.ExitStack() as queues:
        yield lambda: queues.enter_context(contextlib.closing(SignalQueue()))


@contextlib.contextmanager
def interrupts(equals: Collection[str] = ()) -> Iterator[SignalQueue | None]:
    """Yield a queue that receives only Ctrl-C, for a job inside a program that keeps running.

    If the user pressed Ctrl-C, the context manager raises KeyboardInterrupt on exit, after all ranks have exited. It
    yields None outside the main thread, or if the program has its own SIGINT handler.

    Args:
        equals: Packages whose SIGINT handlers count as Python's default handler.
    """
    handler = signal.getsignal(signal.SIGINT)
    package = str(getattr(handler, "__module__", "")).partition(".")[0]
    plain = handler is signal.default_int_handler or package in equals
    if not plain or threading.current_thread() is not threading.main_thread():
        yield None
        return
    with _restored([signal.SIGINT]), contextlib.closing(SignalQueue([signal.SIGINT])) as queue:
        yield queue
    if queue.taken:
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
