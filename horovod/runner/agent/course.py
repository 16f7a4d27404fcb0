"""The course of a job on one host, decided: which processes get which signal, and when nothing is left to do. Pure:
times are arguments (monotonic, s), and so is what lives.

    WAITING --StartJob--> RUNNING --all workers have ended--> WINDING_DOWN --nothing lives any more--> FINISHED
       |                     |                                     | LINGER s later something still does
       '--- Stop, a signal, bad orders, no launcher any more ------+--> STOPPING --SIGTERM ... SIGKILL--> FINISHED

A stop may begin with a signal for the ranks alone (SIGINT after Ctrl-C). They keep their data loaders and other helpers
until they have ended or the grace is over; then SIGTERM follows.

Workers of a lasting job come and go, so that all have ended is no end there.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

TERM_GRACE = 5.0  # s between SIGTERM and SIGKILL when nobody is left who would tell another time
GIVE_UP = 5.0  # s after SIGKILL: processes that the kernel cannot end (a dead network disk) are reported and left
LINGER = 0.2  # s that children of ended workers get to end by themselves (multiprocessing's helpers do)


class Phase(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    WINDING_DOWN = "winding down"
    STOPPING = "stopping"
    FINISHED = "finished"


@dataclass(frozen=True)
class Step:
    """Processes that get SIGTERM or SIGKILL now. `survivors`: the job has finished here, and these live on.

    `first`: the signal that all ranks get now, of which `Course.told` is to be told; 0: none.
    """

    first: int = 0
    term: Sequence[int] = ()
    kill: Sequence[int] = ()
    survivors: Sequence[int] | None = None


class Course:
    """`phase`: where it is."""

    def __init__(self) -> None:
        self.phase = Phase.WAITING
        self._started = False
        self._lasting = False
        self._linger_until: float  # once it winds down
        self._kill_at: float | None = None
        self._asked: set[int] = set()  # processes that have had their SIGTERM
        self._first = 0  # the signal with which a stop begins, until SIGTERM follows
        self._ranks: list[int] | None = None  # that have had it; None: not sent yet
        self._term_at = 0.0  # when SIGTERM follows

    @property
    def changes(self) -> bool:
        """Does it depend on processes that nobody tells of, so that one has to look?"""
        return self.phase in (Phase.WINDING_DOWN, Phase.STOPPING)

    @property
    def stopping(self) -> bool:
        """True from the first request to stop."""
        return self.phase is Phase.STOPPING

    def start(self, lasting: bool = False) -> bool:
        """The orders have come; False: for a second time. `lasting`: that no worker lives is no end."""
        first = not self._started
        self._lasting = lasting
        self._started = True
        if self.phase is Phase.WAITING:
            self.phase = Phase.RUNNING
        return first

    def stop(self, grace: float, now: float, first: int = 0) -> None:
        """End everything, `grace` s between SIGTERM and SIGKILL; again: it can only become sooner.

        With `first` the ranks get this signal before, and `grace` s to end; SIGKILL comes TERM_GRACE after SIGTERM.
        """
        if self.phase is Phase.FINISHED:
            return
        if self.phase is not Phase.STOPPING:
            self._first, self._term_at = first, now + grace
        elif not first:
            self._first = 0
        kill_at = now + grace + (TERM_GRACE if first else 0)
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)
        self.phase = Phase.STOPPING

    def told(self, ranks: Sequence[int]) -> None:
        """These processes have got the first signal."""
        self._ranks = list(ranks)
        if self._first == signal.SIGTERM:
            self._asked.update(ranks)

    def advance(self, now: float, running: bool, look: Callable[[], list[int]]) -> Step:
        """The next step. `running`: does a worker live? `look` finds all that lives of the job here."""
        runs_on = self.phase is Phase.RUNNING and (running or self._lasting)
        if runs_on or self.phase in (Phase.WAITING, Phase.FINISHED):
            return Step()
        if self.phase is Phase.RUNNING:
            self.phase, self._linger_until = Phase.WINDING_DOWN, now + LINGER
        alive = look() if self._started else []
        if not alive:
            return self._finish([])
        if self.phase is Phase.WINDING_DOWN:
            if now >= self._linger_until:
                self.stop(TERM_GRACE, now)  # what the workers left behind ends with them
            return Step()
        assert self._kill_at is not None
        if self._first:
            if self._ranks is None:
                return Step(first=self._first)
            if not set(self._ranks).intersection(alive):  # what they leave behind may end by itself, too
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
        self.phase = Phase.FINISHED
        return Step(kill=survivors, survivors=survivors)

    def gives_up(self, now: float) -> bool:
        """Has a launcher that is gone had its time to take the last reports? Asked once nothing else is left."""
        if self._kill_at is None:
            self._kill_at = now
        return now >= self._kill_at + GIVE_UP
