"""State machine of a job on one host: decides which processes get which signal and when the job has ended. No I/O.

The caller passes the current time (monotonic, seconds) and the set of live processes.

    WAITING --StartJob--> RUNNING --all workers have ended--> WINDING_DOWN --no process left--> FINISHED
       |                     |                                     | processes left after LINGER s
       '--- Stop, a signal, bad orders, launcher lost -------------+--> STOPPING --SIGTERM ... SIGKILL--> FINISHED

A stop can begin with a signal to the ranks only (SIGINT after Ctrl-C). The ranks keep their data loaders and other
helpers until they have ended or the grace period is over; then all processes get SIGTERM.

A lasting job continues when all its workers have ended, because more can start.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

TERM_GRACE = 5.0  # Seconds between SIGTERM and SIGKILL, unless the launcher requests another time.
# Seconds after SIGKILL until processes that cannot be killed (on a dead network disk) are reported and left.
GIVE_UP = 5.0
LINGER = 0.2  # Seconds for children of ended workers, such as multiprocessing helpers, to end by themselves.


class HostPhase(Enum):
    """State of a job on one host."""

    WAITING = "waiting"
    RUNNING = "running"
    WINDING_DOWN = "winding down"
    STOPPING = "stopping"
    FINISHED = "finished"


@dataclass(frozen=True)
class Step:
    """Signals that the agent sends now, as computed by `HostState.advance`.

    Attributes:
        first: Signal for all ranks, 0 for none. The caller confirms it with `HostState.confirm_signalled`.
        term: Processes that get SIGTERM.
        kill: Processes that get SIGKILL.
        survivors: Processes that could not be killed; None until the job has finished on this host.
    """

    first: int = 0
    term: Sequence[int] = ()
    kill: Sequence[int] = ()
    survivors: Sequence[int] | None = None


class HostState:
    """State of the job on this host. `phase` is the current state."""

    def __init__(self) -> None:
        self.phase = HostPhase.WAITING
        self._started = False
        self._lasting = False
        self._linger_until: float  # Time until which children can end by themselves while winding down.
        self._kill_at: float | None = None
        self._asked: set[int] = set()  # Processes that got SIGTERM.
        self._first = 0  # Signal that begins the stop; 0 for none, or once SIGTERM has followed.
        self._ranks: list[int] | None = None  # Processes that got this signal; None until it is sent.
        self._term_at = 0.0  # Time at which SIGTERM follows.

    @property
    def changes(self) -> bool:
        """True if the next step depends on processes whose exits are not reported, so the caller must poll them."""
        return self.phase in (HostPhase.WINDING_DOWN, HostPhase.STOPPING)

    @property
    def stopping(self) -> bool:
        """True once a stop has been requested."""
        return self.phase is HostPhase.STOPPING

    def start(self, lasting: bool = False) -> bool:
        """Record the arrival of the orders; return False if it is not the first.

        A `lasting` job continues without workers.
        """
        first = not self._started
        self._lasting = lasting
        self._started = True
        if self.phase is HostPhase.WAITING:
            self.phase = HostPhase.RUNNING
        return first

    def stop(self, grace: float, now: float, first: int = 0) -> None:
        """Begin to end all processes, with `grace` seconds from SIGTERM to SIGKILL. Later calls can only shorten this.

        If `first` is given, the ranks get this signal first and have `grace` seconds to end. SIGTERM then follows, and
        SIGKILL TERM_GRACE seconds later.
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
        """Record the processes that got the first signal."""
        self._ranks = list(ranks)
        if self._first == signal.SIGTERM:
            self._asked.update(ranks)

    def advance(self, now: float, running: bool, look: Callable[[], list[int]]) -> Step:
        """Return the next step. `running` is True if any worker runs; `look` returns all live processes of the job."""
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
                self.stop(TERM_GRACE, now)  # end the processes that the workers left behind
            return Step()
        assert self._kill_at is not None
        if self._first:
            if self._ranks is None:
                return Step(first=self._first)
            if not set(self._ranks).intersection(alive):  # all ranks have ended, so their helpers can end too
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
        """Return True if a lost launcher had enough time to read the last reports.

        Call it after all processes have ended.
        """
        if self._kill_at is None:
            self._kill_at = now
        return now >= self._kill_at + GIVE_UP
