"""States of an elastic job, and the actions that its membership requests and its caller carries out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from horovod.common.contract.membership import HostUpdateResult
from horovod.runner.plan.hosts import Slot


@dataclass(frozen=True)
class Spawn:
    """Action that starts a process on the host. `worker` is its number, which is never reused in this job."""

    worker: int
    host: str


@dataclass(frozen=True)
class Form:
    """Action that tells waiting workers that they form a new epoch. `places` maps these workers to slots."""

    epoch: int
    places: Mapping[int, Slot]


@dataclass(frozen=True)
class Break:
    """Action that tells the members of an epoch that it is over, in case they have not noticed.

    Members that are still connecting give up; members that train let their operations fail. `lost` lists the workers
    whose processes are gone or about to be.
    """

    epoch: int
    why: str
    lost: tuple[int, ...] = ()


@dataclass(frozen=True)
class Notify:
    """Action that tells the members that workers can join or must leave. They return at their next commit."""

    epoch: int
    update: HostUpdateResult


@dataclass(frozen=True)
class Dismiss:
    """Action that tells a waiting worker that it no longer has a slot, so that it ends by itself."""

    worker: int
    why: str


@dataclass(frozen=True)
class Kill:
    """Action that kills a worker with SIGKILL, because it must not run in the next epoch."""

    worker: int
    why: str


@dataclass(frozen=True)
class Abandon:
    """Action that stops waiting for a worker and its output, although its process has not ended yet."""

    worker: int


@dataclass(frozen=True)
class Say:
    """Action that shows a message to the user."""

    text: str


@dataclass(frozen=True)
class End:
    """Action that ends the job and its processes. `text` is the reason; it is empty after a normal end."""

    success: bool
    text: str = ""


Action = Spawn | Form | Break | Notify | Dismiss | Kill | Abandon | Say | End


# States of an elastic job, and their time limits. `membership` decides the transitions.
#
# STARTING --all started workers wait, at least np--> FORMING --all have connected--> RUNNING
#                                                      ^   |                           |
#              all members have returned or are gone,  |   | one fails, one returns    |
#              and with new workers there are min_np   |   v                           v
#                                                     GATHERING <----------------------'
# after a worker has ended with success: FINISHING, until the last one has ended
# no worker holds the training state, too many resets, no epoch for the elastic timeout: ENDED

# Seconds for a rank that others have lost to show that it is alive. Engines raise errors within this time.
ACCUSED = 2.0
TOGETHER = 5.0  # Seconds for which ready workers wait for others that are starting, so that members pause only once.
LEAVING = 10.0  # Seconds for a dismissed worker to end.
CERTAIN = 10.0  # Seconds after SIGKILL until a process that cannot be killed counts as gone.
# Seconds after a rank's failure in which its host may still be found lost: a shutdown can end the rank first.
TORN_DOWN = 10.0
STOOD_STILL = 5.0  # Seconds of delay from which the launcher or its machine must have been stopped.


class Phase(Enum):
    """State in an elastic job's life cycle."""

    STARTING = "starting"
    FORMING = "forming"
    RUNNING = "running"
    GATHERING = "gathering"
    FINISHING = "finishing"
    ENDED = "ended"


class Standstill:
    """Detector of periods in which the launcher itself was stopped (`kill -STOP`, a sleeping machine).

    Workers do not count as late because of such a period. The caller passes all times (monotonic, seconds).
    """

    def __init__(self, now: float) -> None:
        self._looked = now
        self._due = math.inf

    def waits(self, until: float | None) -> None:
        """Record how long the launcher's loop waits at most (monotonic, s); None if only an event ends the wait.

        A time in the past counts as the time of the last call of `look`: the loop may have been stopped since then.
        """
        self._due = math.inf if until is None else max(until, self._looked)

    def look(self, now: float) -> float:
        """Return the maximum seconds for which the launcher was stopped since the last call; 0.0 if it was not."""
        since, self._looked = self._looked, now
        return now - since if now > self._due + STOOD_STILL else 0.0
