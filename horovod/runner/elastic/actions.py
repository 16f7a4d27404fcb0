"""What the membership of an elastic job decides, for whoever acts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from horovod.common.contract.host_updates import HostUpdateResult
from horovod.runner.plan.hosts import Slot


@dataclass(frozen=True)
class Spawn:
    """Start a process on the host. `worker`: its number, which no other process of the job ever has."""

    worker: int
    host: str


@dataclass(frozen=True)
class Form:
    """Tell these workers, all of which wait for it, that they are the epoch now. `places`: by worker."""

    epoch: int
    places: Mapping[int, Slot]


@dataclass(frozen=True)
class Break:
    """Tell the members of the epoch that it is over, should they not have noticed: those that connect give up, those
    that train let their operations fail. `lost`: the workers that are gone for certain, or about to be."""

    epoch: int
    why: str
    lost: tuple[int, ...] = ()


@dataclass(frozen=True)
class Notify:
    """Tell the members of the epoch that others could join, or that some are to leave: they come back when it suits
    them."""

    epoch: int
    update: HostUpdateResult


@dataclass(frozen=True)
class Dismiss:
    """Tell a worker that waits that it has no place any more; it ends by itself."""

    worker: int
    why: str


@dataclass(frozen=True)
class Kill:
    """SIGKILL: it must not be there when the next epoch begins."""

    worker: int
    why: str


@dataclass(frozen=True)
class Abandon:
    """Nobody waits for this worker any more, or for what it has to say, though it may be there still: the kernel does
    not end it."""

    worker: int


@dataclass(frozen=True)
class Say:
    """A line for whoever watches the job."""

    text: str


@dataclass(frozen=True)
class End:
    """The job is over; what still runs is stopped. `text`: why, empty when it is as it should be."""

    success: bool
    text: str = ""


Action = Spawn | Form | Break | Notify | Dismiss | Kill | Abandon | Say | End
