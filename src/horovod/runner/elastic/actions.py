"""Actions that the membership of an elastic job decides on and its caller carries out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
