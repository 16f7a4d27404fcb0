"""Signals as something to poll for."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_TAKEN = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGTTIN)


@contextlib.contextmanager
def given_back() -> Iterator[None]:
    """Afterwards signals do what they did before: for jobs inside of a program that goes on."""
    if threading.current_thread() is not threading.main_thread():  # where nobody can take them over
        yield
        return
    handlers = {number: signal.getsignal(number) for number in _TAKEN}
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in handlers.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


class SignalQueue:
    """Takes over the signals that end a job, for the life of the process; `fd` is readable when one has come.

    SIGHUP stays ignored where the user has said so (nohup). Only for the main thread.
    """

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self.fd, wake_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        if signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:  # Ctrl-Z
            signal.signal(signal.SIGTSTP, self._on_signal)
        # A launcher in the background that reads from the terminal must not be stopped by it; the read fails instead.
        signal.signal(signal.SIGTTIN, signal.SIG_IGN)

    @classmethod
    def if_possible(cls) -> SignalQueue | None:
        """None outside of the main thread: whoever started it has the signals then."""
        return cls() if threading.current_thread() is threading.main_thread() else None

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._numbers.append(number)

    def take(self) -> list[int]:
        """The signals since the last call."""
        try:
            os.read(self.fd, 4096)
        except BlockingIOError:
            pass
        taken, self._numbers = self._numbers, []
        return taken
