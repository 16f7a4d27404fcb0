"""Signals delivered through a descriptor that can be polled."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from types import FrameType

WARNING = signal.SIGUSR1
"""Signal with which batch systems warn of a job's end. It is passed on to the ranks and ends no process."""
_TAKEN = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGTTIN, WARNING)


class SignalQueue:
    """Handlers of the signals that end a job, or warn of its end. `fd` is readable when a signal has arrived.

    SIGHUP stays ignored if the process was started so (nohup). For the main thread only.
    """

    def __init__(self, only: Collection[int] | None = None) -> None:
        """Install the handlers. `only` handles these signals and no others."""
        self._numbers: list[int] = []
        self.taken: set[int] = set()
        """All signals that have arrived so far."""
        self.fd, self._wake_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._wake_end, warn_on_full_buffer=False)
        if only is not None:
            for number in only:
                signal.signal(number, self._on_signal)
            return
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        for number in (signal.SIGTSTP, WARNING):  # leave these to a program that has its own handler
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, self._on_signal)
        # A background launcher that reads from the terminal must not be stopped; its read fails instead.
        signal.signal(signal.SIGTTIN, signal.SIG_IGN)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._numbers.append(number)
        self.taken.add(number)

    def take(self) -> list[int]:
        """Return the signals since the last call."""
        try:
            os.read(self.fd, 4096)
        except BlockingIOError:
            pass
        taken, self._numbers = self._numbers, []
        return taken

    def close(self) -> None:
        """Stop receiving signals. The caller must restore the handlers."""
        signal.set_wakeup_fd(-1)
        os.close(self.fd)
        os.close(self._wake_end)


@contextlib.contextmanager
def given_back() -> Iterator[Callable[[], SignalQueue | None]]:
    """Yield a function that creates a `SignalQueue`, and restore all handlers afterwards.

    For jobs inside a program that continues. Outside the main thread, which alone can handle signals, the function
    returns None.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    with _restored(_TAKEN), contextlib.ExitStack() as queues:
        yield lambda: queues.enter_context(contextlib.closing(SignalQueue()))


@contextlib.contextmanager
def interrupts(equals: Collection[str] = ()) -> Iterator[SignalQueue | None]:
    """Yield a queue of Ctrl-C alone, for a job inside a program that continues.

    If Ctrl-C came, KeyboardInterrupt is raised at the end, so that the ranks can end before the exception reaches the
    program. There is no queue outside the main thread, or where the program has its own handler for SIGINT.

    Args:
        equals: Packages whose handlers do no more than Python's own.
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
