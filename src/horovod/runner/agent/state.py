"""Pure state machine of a job on one host: which processes get which signal, and when the job has ended.

Times are arguments (monotonic, s), and so is the set of live processes.

    WAITING --StartJob--> RUNNING --all workers have ended--> WINDING_DOWN --no process left--> FINISHED
       |                     |                                     | processes left after LINGER s
       '--- Stop, a signal, bad orders, launcher lost -------------+--> STOPPING --SIGTERM ... SIGKILL--> FINISHED

A stop may begin with a signal for the ranks alone (SIGINT after Ctrl-C). They keep their data loaders and other helpers
until they have ended or the grace period is over; then SIGTERM follows.

A lasting job, whose workers come and go, does not end when all workers have ended.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

TERM_GRACE = 5.0  # s between SIGTERM and SIGKILL where the launcher gives no other time
GIVE_UP = 5.0  # s after SIGKILL until processes that the kernel cannot end (a dead network disk) are reported and left
LINGER = 0.2  # s for children of ended workers to end by themselves, as multiprocessing's helpers do


class HostPhase(Enum):
    """State of a job on one host."""

    WAITING = "waiting"
    RUNNING = "running"
    WINDING_DOWN = "winding down"
    STOPPING = "stopping"
    FINISHED = "finished"


@dataclass(frozen=True)
class Step:
    """Signals to send to processes now.

    Attributes:
        first: Signal for all ranks, to be confirmed with `HostState.told`; 0 for none.
        term: Processes that get SIGTERM.
        kill: Processes that get SIGKILL.
        survivors: None until the job has finished here; then the processes that could not be ended.
    """

    first: int = 0
    term: Sequence[int] = ()
    kill: Sequence[int] = ()
    survivors: Sequence[int] | None = None


class HostState:
    """State of the job on this host; `phase` is the current one."""

    def __init__(self) -> None:
        self.phase = HostPhase.WAITING
        self._started = False
        self._lasting = False
        self._linger_until: float  # until when children may end by themselves, while winding down
        self._kill_at: float | None = None
        self._asked: set[int] = set()  # processes that got SIGTERM
        self._first = 0  # signal with which the stop begins, until SIGTERM follows
        self._ranks: list[int] | None = None  # processes that got that signal; None: not sent yet
        self._term_at = 0.0  # when SIGTERM follows

    @property
    def changes(self) -> bool:
        """True if the next step depends on processes whose ends are not reported, so that they must be polled."""
        return self.phase in (HostPhase.WINDING_DOWN, HostPhase.STOPPING)

    @property
    def stopping(self) -> bool:
        """True from the first request to stop."""
        return self.phase is HostPhase.STOPPING

    def start(self, lasting: bool = False) -> bool:
        """Record the orders; return False if they had come before. A `lasting` job continues without workers."""
        first = not self._started
        self._lasting = lasting
        self._started = True
        if self.phase is HostPhase.WAITING:
            self.phase = HostPhase.RUNNING
        return first

    def stop(self, grace: float, now: float, first: int = 0) -> None:
        """End everything, with `grace` seconds between SIGTERM and SIGKILL. A further call can only shorten the time.

        If `first` is given, the ranks get this signal first and `grace` seconds to end. SIGTERM follows, and SIGKILL
        TERM_GRACE seconds after it.
        """
        if self.phase is HostPhase.FINISHED:
            return
        if self.phase is not HostPhase.STOPPING:
            self._first, self._term_at = first, now + grace
        elif not first:
            self._first = 0
        kill_at = now + grace + (TERM_GRACE if first else 0)
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)
        self.phase = HostPhase.STOPPING

    def confirm_signalled(self, ranks: Sequence[int]) -> None:
        """Record which processes got the first signal."""
        self._ranks = list(ranks)
        if self._first == signal.SIGTERM:
            self._asked.update(ranks)

    def advance(self, now: float, running: bool, look: Callable[[], list[int]]) -> Step:
        """Return the next step. `running` is True if a worker runs; `look` returns all live processes of the job."""
        runs_on = self.phase is HostPhase.RUNNING and (running or self._lasting)
        if runs_on or self.phase in (HostPhase.WAITING, HostPhase.FINISHED):
            return Step()
        if self.phase is HostPhase.RUNNING:
            self.phase, self._linger_until = HostPhase.WINDING_DOWN, now + LINGER
        alive = look() if self._started else []
        if not alive:
            return self._finish([])
        if self.phase is HostPhase.WINDING_DOWN:
            if now >= self._linger_until:
                self.stop(TERM_GRACE, now)  # end what the workers left behind
            return Step()
        assert self._kill_at is not None
        if self._first:
            if self._ranks is None:
                return Step(first=self._first)
            if not set(self._ranks).intersection(alive):  # ranks have ended; their helpers may end too
                self._term_at = min(self._term_at, now + LINGER)
            if now < self._term_at:
                return Step()
            self._first = 0
            self._kill_at = min(self._kill_at, now + TERM_GRACE)
        if now >= self._kill_at + GIVE_UP:
            return self._finish(alive)
        if now >= self._kill_at:
            return Step(kill=alive)
        asked = [pid for pid in alive if pid not in self._asked]
        self._asked.update(asked)
        return Step(term=asked)

    def _finish(self, survivors: list[int]) -> Step:
        self.phase = HostPhase.FINISHED
        return Step(kill=survivors, survivors=survivors)

    def gives_up(self, now: float) -> bool:
        """Return True if a lost launcher had enough time to take the last reports. Called when all else is done."""
        if self._kill_at is None:
            self._kill_at = now
        return now >= self._kill_at + GIVE_UP
