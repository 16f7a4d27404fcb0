"""Phases of an elastic job, and the actions that its state machine requests from the launcher."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from horovod.common.contract.membership import HostUpdateResult
from horovod.runner.plan.hosts import Slot


@dataclass(frozen=True)
class Spawn:
    """Request to start a worker process on a host.

    Attributes:
        worker: Number of the new worker. Worker numbers are never reused within a job.
        host: Host on which to start the worker.
    """

    worker: int
    host: str


@dataclass(frozen=True)
class Form:
    """Request to tell waiting workers to form a new epoch.

    Attributes:
        epoch: Number of the new epoch.
        places: Maps the number of each worker in the epoch to its slot (host and ranks).
    """

    epoch: int
    places: Mapping[int, Slot]


@dataclass(frozen=True)
class Break:
    """Request to tell the members of an epoch that the epoch is over, in case they have not noticed.

    Members that are still connecting to each other give up. Members that are training abort their collective
    operations.

    Attributes:
        epoch: Number of the epoch that is over.
        why: Reason to show in messages.
        lost: Numbers of the workers whose processes have exited or will be killed.
    """

    epoch: int
    why: str
    lost: tuple[int, ...] = ()


@dataclass(frozen=True)
class Notify:
    """Request to tell the members that workers can join or must leave. Members react at their next commit."""

    epoch: int
    update: HostUpdateResult


@dataclass(frozen=True)
class Dismiss:
    """Request to tell a waiting worker that it has lost its slot. The worker then exits on its own."""

    worker: int
    why: str


@dataclass(frozen=True)
class Kill:
    """Request to kill a worker with SIGKILL, because it must not run in the next epoch."""

    worker: int
    why: str


@dataclass(frozen=True)
class Abandon:
    """Request to stop waiting for a worker and its output, although its process still exists."""

    worker: int


@dataclass(frozen=True)
class Say:
    """Request to show a message to the user."""

    text: str


@dataclass(frozen=True)
class End:
    """Request to end the job and all its processes.

    Attributes:
        success: True if the job has succeeded.
        text: Reason for a failure. Empty if the job has succeeded.
    """

    success: bool
    text: str = ""


Action = Spawn | Form | Break | Notify | Dismiss | Kill | Abandon | Say | End


# If ranks report that they lost the connection to another rank, that rank has ACCUSED seconds to show that it is alive.
# After this time, it is killed. The time suffices for a healthy rank's engine to raise an error.
ACCUSED = 2.0
# New workers that are ready to join wait up to TOGETHER seconds for other new workers that are still starting. They can
# then join together, which interrupts the training only once.
TOGETHER = 5.0
LEAVING = 10.0  # A dismissed worker is killed if it has not exited after LEAVING seconds.
CERTAIN = 10.0  # A worker that still exists CERTAIN seconds after SIGKILL is abandoned.
# A host can be reported as lost up to TORN_DOWN seconds after a rank on it failed, because a host that shuts down can
# kill the rank first.
TORN_DOWN = 10.0
# If the launcher's loop wakes up more than STOOD_STILL seconds late, the launcher or its machine was suspended.
STOOD_STILL = 5.0


class Phase(Enum):
    """Phase in the life cycle of an elastic job. `membership` decides the transitions.

    Attributes:
        STARTING: The first workers are starting and call hvd.init().
        FORMING: The members of a new epoch connect to each other.
        RUNNING: All members have connected and are training.
        GATHERING: The epoch is over. A new epoch is formed when all its members have returned or ended, and at least
            min_np workers are waiting.
        FINISHING: A worker has exited with success. The job waits for the other workers to end.
        ENDED: The job is over. It fails if no worker holds the training state, if the members have changed too often,
            or if no epoch is running for the elastic timeout.
    """

    STARTING = "starting"
    FORMING = "forming"
    RUNNING = "running"
    GATHERING = "gathering"
    FINISHING = "finishing"
    ENDED = "ended"


class Standstill:
    """Detector for periods in which the launcher was suspended, by `kill -STOP` or together with its machine.

    The launcher then extends all deadlines by the length of the period. The caller passes all times (monotonic,
    seconds).
    """

    def __init__(self, now: float) -> None:
        self._looked = now
        self._due = math.inf

    def waits(self, until: float | None) -> None:
        """Record when the launcher's loop will wake up at the latest.

        Args:
            until: Time (monotonic, s), or None if the loop waits for an event without a time limit.
        """
        self._due = math.inf if until is None else max(until, self._looked)

    def look(self, now: float) -> float:
        """Return for how many seconds the launcher was suspended since the last call, or 0.0 if it was not."""
        since, self._looked = self._looked, now
        return now - since if now > self._due + STOOD_STILL else 0.0
