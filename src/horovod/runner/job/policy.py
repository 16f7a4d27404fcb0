"""State machine for one attempt to run a job. It performs no I/O.

Every method takes the time (monotonic, s) and returns the actions that `watch` and the attempt carry out.

    CONNECTING --all hosts connected--> STARTING --processes run--> RUNNING --a rank fails--> SETTLING
         |                                  |                          |                         | a moment later
         '----------------------------------+-- trouble, a signal -----+-------------------------+--> STOPPING
                                                                                                         |
    from every phase, when no process of the attempt runs any more: ENDED, only output remains to be written
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum

# Seconds after the first failure in which other ranks may fail and report why. The engine raises their
# HorovodInternalError within 2 s.
SETTLE = 2.0
TERM_GRACE = 5.0  # Seconds between SIGTERM and SIGKILL.
USER_GRACE = 30.0  # Seconds for ranks to end by themselves when the user stops the job (--grace-seconds).
AGENT_GRACE = 12.0  # Additional seconds until processes that do not end are given up.
LAST_WORDS = 1.0  # Seconds to write output that no program reads, when the user stops the job.


class Phase(Enum):
    """State of an attempt to run a job."""

    CONNECTING = "connecting"
    STARTING = "starting"
    RUNNING = "running"
    SETTLING = "settling"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True)
class Launch:
    """Action that sends the orders to all hosts."""


@dataclass(frozen=True)
class Stop:
    """Action that ends all processes. A later `Stop` can only shorten the time.

    Attributes:
        grace: Seconds between SIGTERM and SIGKILL.
        first: Signal to send now. SIGTERM then follows after `grace` seconds. 0 means to begin with SIGTERM.
    """

    grace: float
    first: int = 0


@dataclass(frozen=True)
class Late:
    """Action that reports that the start timeout has expired. A `Stop` then follows."""


Action = Launch | Stop | Late


class Policy:
    """Policy of jobs of fixed size: the first failure ends the attempt.

    Without a start timeout it begins as RUNNING.
    """

    def __init__(self, now: float, start_timeout: float | None, user_grace: float = USER_GRACE) -> None:
        self.phase = Phase.RUNNING if start_timeout is None else Phase.CONNECTING
        self._start_timeout = start_timeout
        self.user_grace = user_grace
        """Seconds that ranks have to end by themselves when the user stops the job."""
        self._start_by = None if start_timeout is None else now + start_timeout
        self._settle_at: float | None = None
        self._give_up_at: float | None = None
        self._interrupted = False

    # Queries

    @property
    def stopping(self) -> bool:
        """True once the attempt is being stopped."""
        return self.phase is Phase.STOPPING

    def next_time(self) -> float | None:
        """Return the time at which `tick` must be called next, or None if there is no deadline."""
        times = (self._start_by, self._settle_at, self._give_up_at)
        return min((at for at in times if at is not None), default=None)

    def gives_up(self, now: float) -> bool:
        """Return True if the time for processes to end has passed."""
        return self._give_up_at is not None and now >= self._give_up_at

    # Events

    def connected(self, now: float) -> list[Action]:
        """Record that all hosts are connected. Idempotent."""
        if self.phase is not Phase.CONNECTING:
            return []
        self.phase = Phase.STARTING
        self._start_by = None if self._start_timeout is None else now + self._start_timeout
        return [Launch()]

    def started(self) -> None:
        """Record that a host has started its processes."""
        self._start_by = None
        if self.phase is Phase.STARTING:
            self.phase = Phase.RUNNING

    def failed(self, now: float) -> None:
        """Record that a rank has failed."""
        if self.phase in (Phase.STARTING, Phase.RUNNING):
            self.phase = Phase.SETTLING
            self._settle_at = now + SETTLE

    def trouble(self, now: float) -> list[Action]:
        """Stop the attempt because a host is lost or unusable, or because output cannot be written.

        This does not shorten the time that ranks have after Ctrl-C.
        """
        if self._interrupted:
            return []
        return self._stop(0 if self.phase is Phase.CONNECTING else TERM_GRACE, now)

    def interrupted(self, now: float, number: int = signal.SIGINT) -> list[Action]:
        """Stop the attempt because the user sent this signal. A second signal kills the processes at once.

        Ranks get SIGINT as SIGINT, so that a program sees KeyboardInterrupt. They get every other signal as SIGTERM.
        """
        if self._interrupted:
            return self._stop(0, now)
        self._interrupted = True
        return self._stop(self.user_grace, now, signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    def tick(self, now: float, doubtful: bool = False) -> list[Action]:
        """Act on deadlines that have passed.

        `doubtful` is True if a host may be lost, which would explain the failures.
        """
        if self._start_by is not None and now >= self._start_by:
            return [Late(), *self._stop(0, now)]
        if self._settle_at is not None and now >= self._settle_at:
            if not doubtful:
                return self._stop(TERM_GRACE, now)
            self._settle_at = now + SETTLE / 4
        return []

    def reader_is_slow(self, now: float) -> None:
        """Extend the time for processes to end, because they may be waiting for the reader of our output."""
        if self._give_up_at is not None:
            self._give_up_at = max(self._give_up_at, now + AGENT_GRACE)

    def ended(self, now: float) -> None:
        """Record that no process runs any more. Remaining output waits without limit for its reader, as in a pipe."""
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
