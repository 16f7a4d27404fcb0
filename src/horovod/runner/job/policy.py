"""State machine for one attempt to run a job. It performs no I/O.

All methods take the current time (monotonic, s), and return the actions that `watch` and the attempt carry out. After
the first failure of a rank, the attempt waits briefly, so that other ranks can report why they failed. It then stops
all processes.

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

# Seconds that the job waits after the first failure, so that other ranks that fail can also report their reasons. On
# these ranks, the engine raises HorovodInternalError within 2 s.
SETTLE = 2.0
# Seconds between SIGTERM and SIGKILL
TERM_GRACE = 5.0
# Default grace period in seconds for ranks to exit after the user has stopped the job (--grace-seconds)
USER_GRACE = 30.0
# Seconds after the end of the grace periods at which remaining processes are abandoned
AGENT_GRACE = 12.0
FINAL_OUTPUT_SECONDS = 1.0  # Seconds after which unread output is discarded once a job that the user stopped has ended


class Phase(Enum):
    """Phase of an attempt to run a job."""

    CONNECTING = "connecting"
    STARTING = "starting"
    RUNNING = "running"
    SETTLING = "settling"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True)
class Launch:
    """Request to tell all agents to start their workers."""


@dataclass(frozen=True)
class Stop:
    """Request to stop all processes. A later `Stop` can only shorten the grace period.

    Attributes:
        grace: Seconds between SIGTERM and SIGKILL.
        first: Signal to send to the ranks now, or 0. If it is not 0, SIGTERM follows after `grace` seconds.
    """

    grace: float
    first: int = 0


@dataclass(frozen=True)
class Late:
    """Request to report that the start timeout has expired. A `Stop` follows."""


Action = Launch | Stop | Late


class Policy:
    """Policy for fixed-size jobs, in which the first failure ends the attempt.

    If there is no start timeout, the attempt starts in the phase RUNNING.
    """

    def __init__(self, now: float, start_timeout: float | None, user_grace: float = USER_GRACE) -> None:
        self.phase = Phase.RUNNING if start_timeout is None else Phase.CONNECTING
        self._start_timeout = start_timeout
        self.user_grace = user_grace
        """Grace period in seconds for ranks to exit after the user stops the job."""
        self._start_by = None if start_timeout is None else now + start_timeout
        self._settle_at: float | None = None
        self._give_up_at: float | None = None
        self._interrupted = False

    @property
    def stopping(self) -> bool:
        """True if the attempt is being stopped."""
        return self.phase is Phase.STOPPING

    def next_time(self) -> float | None:
        """Return the next time (monotonic, s) at which the caller must call `tick`, or None if nothing is scheduled."""
        times = (self._start_by, self._settle_at, self._give_up_at)
        return min((at for at in times if at is not None), default=None)

    def gives_up(self, now: float) -> bool:
        """Return True if the deadline for processes to exit has passed."""
        return self._give_up_at is not None and now >= self._give_up_at

    def connected(self, now: float) -> list[Action]:
        """Record that all hosts are connected. Repeated calls have no effect."""
        if self.phase is not Phase.CONNECTING:
            return []
        self.phase = Phase.STARTING
        self._start_by = None if self._start_timeout is None else now + self._start_timeout
        return [Launch()]

    def started(self) -> None:
        """Record that the processes on a host have started."""
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

        Do nothing if the user has already stopped the job, because the ranks are exiting.
        """
        if self._interrupted:
            return []
        return self._stop(0 if self.phase is Phase.CONNECTING else TERM_GRACE, now)

    def interrupted(self, now: float, number: int = signal.SIGINT) -> list[Action]:
        """Stop the attempt, because the user sent a signal. A second signal kills all processes.

        If the user sent SIGINT, the ranks also receive SIGINT, which raises KeyboardInterrupt. For any other signal,
        they receive SIGTERM.
        """
        if self._interrupted:
            return self._stop(0, now)
        self._interrupted = True
        return self._stop(self.user_grace, now, signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    def tick(self, now: float, doubtful: bool = False) -> list[Action]:
        """Handle deadlines that have passed.

        `doubtful` is True if a silent host might be lost. In this case, no rank is blamed yet.
        """
        if self._start_by is not None and now >= self._start_by:
            return [Late(), *self._stop(0, now)]
        if self._settle_at is not None and now >= self._settle_at:
            if not doubtful:
                return self._stop(TERM_GRACE, now)
            self._settle_at = now + SETTLE / 4
        return []

    def reader_is_slow(self, now: float) -> None:
        """Give processes more time to exit, because they can be blocked until a slow reader reads their output."""
        if self._give_up_at is not None:
            self._give_up_at = max(self._give_up_at, now + AGENT_GRACE)

    def ended(self, now: float) -> None:
        """Record that all processes have exited. The launcher then waits indefinitely for its output to be read."""
        self.phase = Phase.ENDED
        self._start_by = self._settle_at = None
        if not self._interrupted:
            self._give_up_at = None
        elif self._give_up_at is not None:
            self._give_up_at = min(self._give_up_at, now + FINAL_OUTPUT_SECONDS)

    def _stop(self, grace: float, now: float, first: int = 0) -> list[Action]:
        self.phase = Phase.STOPPING
        self._start_by = self._settle_at = None
        give_up = now + grace + (TERM_GRACE if first else 0) + AGENT_GRACE
        self._give_up_at = give_up if self._give_up_at is None else min(self._give_up_at, give_up)
        return [Stop(grace, first)]
