"""Signals that ask a job to stop: a cluster warns some processes before it takes their machines away, and all ranks end
at the same step.

What each rank has heard is reduced like a tensor, so the answer is the same on all of them, in jobs of any launcher.
"""

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from horovod.common.contract.settings import BY_NAME, Settings
from horovod.common.elastic.numbers import largest
from horovod.common.faces import Face

_SETTING = "HOROVOD_STOP_SIGNALS"
SAME = 2.0
"""s in which a signal that comes again is the same warning: Slurm sends it to all processes of a step, and launchers
that hear it pass it on."""


def signals_named(text: str) -> list[signal.Signals]:
    """Of names separated by commas, with or without SIG, each once. Raises ValueError naming one that is none, or
    cannot be caught."""
    found: dict[signal.Signals, None] = {}
    for name in filter(None, (part.strip().upper() for part in text.split(","))):
        number = getattr(signal.Signals, name if name.startswith("SIG") else f"SIG{name}", None)
        if number is None or number in (signal.SIGKILL, signal.SIGSTOP):
            raise ValueError(
                f"{_SETTING} is {text!r}, in which {name} is no signal that can be caught; accepted are names such as "
                f"{BY_NAME[_SETTING].default}"
            )
        found[number] = None
    return list(found)


class Stopping:
    """Of this process."""

    def __init__(self) -> None:
        self.heard = 0
        """The number of the last signal that has come; 0: none."""
        self._since = 0.0  # when it came first
        self._before: dict[int, Any] = {}  # handlers, by signal
        self.listens = False
        """Perhaps to no signal at all."""
        self._sees_forks = False

    def listen(self, signals: list[signal.Signals]) -> None:
        """From now on these signals do not end this process, unless they come twice; a handler that the program has is
        called too. Raises ValueError outside of the main thread, which alone may say what signals do."""
        if threading.current_thread() is not threading.main_thread():
            raise ValueError(
                "should_stop is called for the first time in another thread than the main one, where signals cannot be "
                "caught; accepted is the main thread, also before training begins"
            )
        for number in signals:
            self._before[number] = signal.signal(number, self._hear)
        self.listens = True
        if not self._sees_forks:  # a forked process has this from its parent
            self._sees_forks = True
            os.register_at_fork(after_in_child=self._leave)

    def _leave(self) -> None:
        """A process that was forked off, a data loader's for one, is to end by these signals."""
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
        elif again and before == signal.SIG_DFL:  # whoever asks twice does not want to wait
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


stopping = Stopping()
"""The one of this process."""


def should_stop(face: Face) -> bool:
    """See ``HorovodBasics.should_stop``."""
    face.require_job()
    if not stopping.listens:
        stopping.listen(signals_named(Settings.from_environ().text(_SETTING)))
    return bool(largest(stopping.heard, "horovod.should_stop", face))
