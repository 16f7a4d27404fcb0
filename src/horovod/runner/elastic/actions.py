"""States of an elastic job, and the actions that its membership decides on and its caller carries out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from horovod.common.contract.membership import HostUpdateResult
from horovod.runner.plan.hosts import Slot


@dataclass(frozen=True)
class Spawn:
    """Start a process on the host. `worker` is its number, which no other process of the job ever gets."""

    worker: int
    host: str


@dataclass(frozen=True)
class Form:
    """Tell these workers, all of which are waiting, that they form the epoch. `places` maps workers to slots."""

    epoch: int
    places: Mapping[int, Slot]


@dataclass(frozen=True)
class Break:
    """Tell the members of the epoch that it is over, in case they have not noticed.

    Members that are connecting give up, and those that train let their operations fail. `lost` are the workers that are
    gone, or about to be.
    """

    epoch: int
    why: str
    lost: tuple[int, ...] = ()


@dataclass(frozen=True)
class Notify:
    """Tell the members of the epoch that workers could join or must leave, so that they return at their next commit."""

    epoch: int
    update: HostUpdateResult


@dataclass(frozen=True)
class Dismiss:
    """Tell a waiting worker that it has no slot any more, so that it ends by itself."""

    worker: int
    why: str


@dataclass(frozen=True)
class Kill:
    """Kill the worker with SIGKILL, because it must not run when the next epoch begins."""

    worker: int
    why: str


@dataclass(frozen=True)
class Abandon:
    """Stop waiting for this worker and its output, although the kernel has not ended its process yet."""

    worker: int


@dataclass(frozen=True)
class Say:
    """Show a message to the user."""

    text: str


@dataclass(frozen=True)
class End:
    """End the job and stop what still runs. `text` is the reason; empty after a normal end."""

    success: bool
    text: str = ""


Action = Spawn | Form | Break | Notify | Dismiss | Kill | Abandon | Say | End


# States of an elastic job, and time limits in them. `membership` decides the transitions.
#
# STARTING --all started workers wait, at least np--> FORMING --all have connected--> RUNNING
#                                                      ^   |                           |
#              all members have returned or are gone,  |   | one fails, one returns    |
#              and with new workers there are min_np   |   v                           v
#                                                     GATHERING <----------------------'
# after a worker has ended with success: FINISHING, until the last one has ended
# no worker holds the training state, too many resets, no epoch for the elastic timeout: ENDED

ACCUSED = 2.0  # s for a rank that others have lost to show that it is alive; engines raise errors within this time
TOGETHER = 5.0  # s that ready workers wait for others that are starting, so that the members pause only once
LEAVING = 10.0  # s for a dismissed worker to end
CERTAIN = 10.0  # s after SIGKILL until a process that the kernel cannot end counts as gone
TORN_DOWN = 10.0  # s after a failure in which its host may be found lost; a shutdown may end the rank first
STOOD_STILL = 5.0  # s of delay after which the launcher or its machine must have been stopped


class Phase(Enum):
    """State in an elastic job's life cycle."""

    STARTING = "starting"
    FORMING = "forming"
    RUNNING = "running"
    GATHERING = "gathering"
    FINISHING = "finishing"
    ENDED = "ended"


class Standstill:
    """Detection that the launcher itself was stopped (`kill -STOP`, a sleeping machine), so that no worker is late.

    Pure: times are arguments (monotonic, s).
    """

    def __init__(self, now: float) -> None:
        self._looked = now
        self._due = math.inf

    def waits(self, until: float | None) -> None:
        """Record until when the launcher's loop waits at most; None: until an event.

        A time in the past counts as the time of the last look, because the loop may have been stopped since then.
        """
        self._due = math.inf if until is None else max(until, self._looked)

    def look(self, now: float) -> float:
        """Return for how many seconds at most the launcher was stopped since the last call, 0.0 if it was not."""
        since, self._looked = self._looked, now
        return now - since if now > self._due + STOOD_STILL else 0.0
