"""Signals that ask a job to stop, handled so that all ranks end at the same step.

A cluster sends such a signal to some processes before it takes their machines away. The ranks exchange the received
signals by an allreduce, so all ranks get the same answer under every launcher.
"""

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from horovod.common.contract.settings import BY_NAME, Settings
from horovod.common.elastic.numbers import largest
from horovod.common.frontends import Frontend

_SETTING = "HOROVOD_STOP_SIGNALS"
SAME = 2.0
"""Seconds within which a repeated signal counts as the same warning.

Slurm signals all processes of a step, and launchers that receive the signal forward it.
"""


def signals_named(text: str) -> list[signal.Signals]:
    """Parse a comma-separated list of signal names, with or without "SIG"; repetitions are dropped.

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
    """Stop signals that this process has received."""

    def __init__(self) -> None:
        self.heard = 0
        """Number of the last received signal; 0: none."""
        self._since = 0.0  # Time at which that signal first came.
        self._before: dict[int, Any] = {}  # Previous handlers, by signal.
        self.listens = False
        """True once handlers are installed, even if the list of signals is empty."""
        self._sees_forks = False

    def listen(self, signals: list[signal.Signals]) -> None:
        """Handle these signals, so that a signal ends this process only if it comes twice.

        A handler that the program has installed is called too.

        Raises:
            ValueError: If not called in the main thread, because only that can install signal handlers.
        """
        if threading.current_thread() is not threading.main_thread():
            raise ValueError(
                "should_stop must be called first in the main thread, because other threads cannot catch signals; call "
                "it there once before training begins"
            )
        for number in signals:
            self._before[number] = signal.signal(number, self._hear)
        self.listens = True
        if not self._sees_forks:  # register once, because forked processes inherit it
            self._sees_forks = True
            os.register_at_fork(after_in_child=self._leave)

    def _leave(self) -> None:
        """Restore the handlers in a forked process, such as a data loader worker, so that these signals end it."""
        before, self._before, self.listens = self._before, {}, False
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) == self._hear:
                signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        before, now = self._before.get(number), time.monotonic()
        again = self.heard == number and now >= self._since + SAME
        if self.heard != number:
            self._since = now
        self.heard = number
        if callable(before):
            before(number, frame)
        elif again and before == signal.SIG_DFL:  # a second signal asks the process to end now
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


stopping = Stopping()
"""The instance of this process."""


def should_stop(face: Frontend) -> bool:
    """Return True if any rank has received a stop signal; see ``HorovodBasics.should_stop``."""
    face.require_job()
    if not stopping.listens:
        stopping.listen(signals_named(Settings.from_environ().text(_SETTING)))
    return bool(largest(stopping.heard, "horovod.should_stop", face))
