"""Signals as something to poll for."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from types import FrameType

WARNING = signal.SIGUSR1
"""Of the end of a job, which batch systems send: the ranks are to hear of it, and nothing ends by it."""
_TAKEN = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGTTIN, WARNING)


class SignalQueue:
    """Takes over the signals that end a job, or warn of its end, for the life of the process; `fd` is readable when one
    has come.

    SIGHUP stays ignored where the user has said so (nohup). Only for the main thread.
    """

    def __init__(self, only: Collection[int] | None = None) -> None:
        """`only`: take these signals and no others."""
        self._numbers: list[int] = []
        self.taken: set[int] = set()
        """All signals that have come."""
        self.fd, self._wake_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._wake_end, warn_on_full_buffer=False)
        if only is not None:
            for number in only:
                signal.signal(number, self._on_signal)
            return
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        for number in (signal.SIGTSTP, WARNING):  # Ctrl-Z, and what a program of ours may want for itself
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, self._on_signal)
        # A launcher in the background that reads from the terminal must not be stopped by it; the read fails instead.
        signal.signal(signal.SIGTTIN, signal.SIG_IGN)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._numbers.append(number)
        self.taken.add(number)

    def take(self) -> list[int]:
        """The signals since the last call."""
        try:
            os.read(self.fd, 4096)
        except BlockingIOError:
            pass
        taken, self._numbers = self._numbers, []
        return taken

    def close(self) -> None:
        """No signal is taken any more; what they do then is up to the caller."""
        signal.set_wakeup_fd(-1)
        os.close(self.fd)
        os.close(self._wake_end)


@contextlib.contextmanager
def given_back() -> Iterator[Callable[[], SignalQueue | None]]:
    """Gives what makes a queue. Afterwards signals do what they did before: for jobs inside of a program that goes on.
    Nobody but the main thread can take them over; elsewhere there is no queue.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    with _restored(_TAKEN), contextlib.ExitStack() as queues:
        yield lambda: queues.enter_context(contextlib.closing(SignalQueue()))


@contextlib.contextmanager
def interrupts(equals: Collection[str] = ()) -> Iterator[SignalQueue | None]:
    """Yield a queue of Ctrl-C alone, for a job inside a program that goes on; raise KeyboardInterrupt at the end if
    it came.

    The ranks can then end well before the exception reaches the program. There is no queue outside the main thread, or
    where the program has a handler of its own for SIGINT.

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
