"""Signals as something to poll for."""

from __future__ import annotations

import os
import signal
from types import FrameType


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
