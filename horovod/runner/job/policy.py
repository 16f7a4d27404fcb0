"""The course of one attempt to run a job, decided: what is to be done when something happens. Pure: every method gets
the time (monotonic, s) and returns what to do; `watch` and the attempt do it.

    CONNECTING --all hosts are there--> STARTING --processes run--> RUNNING --a rank fails--> SETTLING
         |                                  |                          |                         | a moment later
         '----------------------------------+-- trouble, a signal -----+-------------------------+--> STOPPING
                                                                                                         |
    from every phase, when nothing of the attempt runs any more: ENDED, only output is left to be written
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum

# s after the first failure in which the others may fail by themselves and say why. The engine promises them their
# HorovodInternalError within 2 s.
SETTLE = 2.0
TERM_GRACE = 5.0  # s between SIGTERM and SIGKILL
USER_GRACE = 30.0  # s for ranks to end by themselves when the user has asked for the end (--grace-seconds)
AGENT_GRACE = 12.0  # s more until what does not end is given up
LAST_WORDS = 1.0  # s to write what is left when the user has asked for the end and nobody reads


class Phase(Enum):
    CONNECTING = "connecting"
    STARTING = "starting"
    RUNNING = "running"
    SETTLING = "settling"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True)
class Launch:
    """Tell every host what to start."""


@dataclass(frozen=True)
class Stop:
    """End all processes; `grace`: s between SIGTERM and SIGKILL. Another one can only make it sooner.

    `first`: a signal that the ranks get before, and then have `grace` s to end; 0: none.
    """

    grace: float
    first: int = 0


@dataclass(frozen=True)
class Late:
    """The start has taken too long; this counts as trouble, and a `Stop` follows."""


Action = Launch | Stop | Late


class Policy:
    """Of a job of fixed size: the first failure ends the attempt. An attempt without a start timeout is running."""

    def __init__(self, now: float, start_timeout: float | None, user_grace: float = USER_GRACE) -> None:
        self.phase = Phase.RUNNING if start_timeout is None else Phase.CONNECTING
        self._start_timeout = start_timeout
        self.user_grace = user_grace
        """Seconds that ranks have to end by themselves when the user asks for the end."""
        self._start_by = None if start_timeout is None else now + start_timeout
        self._settle_at: float | None = None
        self._give_up_at: float | None = None
        self._interrupted = False

    # What is asked

    @property
    def stopping(self) -> bool:
        """Has anything asked for the end?"""
        return self.phase is Phase.STOPPING

    def next_time(self) -> float | None:
        """When `tick` has something to decide; None: nothing depends on the clock."""
        times = (self._start_by, self._settle_at, self._give_up_at)
        return min((at for at in times if at is not None), default=None)

    def gives_up(self, now: float) -> bool:
        """Has what does not end had its time?"""
        return self._give_up_at is not None and now >= self._give_up_at

    # What happens

    def connected(self, now: float) -> list[Action]:
        """Every host is there. May be told again."""
        if self.phase is not Phase.CONNECTING:
            return []
        self.phase = Phase.STARTING
        self._start_by = None if self._start_timeout is None else now + self._start_timeout
        return [Launch()]

    def started(self) -> None:
        """A host has started its processes."""
        self._start_by = None
        if self.phase is Phase.STARTING:
            self.phase = Phase.RUNNING

    def failed(self, now: float) -> None:
        """A rank has ended, and not well."""
        if self.phase in (Phase.STARTING, Phase.RUNNING):
            self.phase = Phase.SETTLING
            self._settle_at = now + SETTLE

    def trouble(self, now: float) -> list[Action]:
        """Something ends the attempt: a host is lost or cannot be used, output cannot be written.

        It does not shorten the time that ranks have after Ctrl-C.
        """
        if self._interrupted:
            return []
        return self._stop(0 if self.phase is Phase.CONNECTING else TERM_GRACE, now)

    def interrupted(self, now: float, number: int = signal.SIGINT) -> list[Action]:
        """Stop because of this signal of the user's; a second one kills at once.

        Ranks get SIGINT as SIGINT, so that a program sees KeyboardInterrupt, and every other signal as SIGTERM.
        """
        if self._interrupted:
            return self._stop(0, now)
        self._interrupted = True
        return self._stop(self.user_grace, now, signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    def tick(self, now: float, doubtful: bool = False) -> list[Action]:
        """The clock. `doubtful`: a host may be lost, which would explain the failures that have been seen."""
        if self._start_by is not None and now >= self._start_by:
            return [Late(), *self._stop(0, now)]
        if self._settle_at is not None and now >= self._settle_at:
            if not doubtful:
                return self._stop(TERM_GRACE, now)
            self._settle_at = now + SETTLE / 4
        return []

    def reader_is_slow(self, now: float) -> None:
        """What does not end may be waiting for whoever reads our output."""
        if self._give_up_at is not None:
            self._give_up_at = max(self._give_up_at, now + AGENT_GRACE)

    def ended(self, now: float) -> None:
        """Nothing runs any more, but output waits for its reader; as in any pipeline, as long as that takes."""
        self.phase = Phase.ENDED
        self._start_by = self._settle_at = None
        if not self._interrupted:
            self._give_up_at = None
        elif self._give_up_at is not None:
            self._give_up_at = min(self._give_up_at, now + LAST_WORDS)

    def _stop(self, grace: float, now: float, first: int = 0) -> list[Action]:
        self.phase = Phase.STOPPING
        self._start_by = self._settle_at = None
        give_up = now + grace + (TERM_GRACE if first else 0) + AGENT_GRACE
        self._give_up_at = give_up if self._give_up_at is None else min(self._give_up_at, give_up)
        return [Stop(grace, first)]
