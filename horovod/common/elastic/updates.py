"""Between the launcher and the states of this process: news of hosts that come and go, on their way here; and whether
the states of all ranks are the same, which each says of its own when it comes, and hears of all with its place.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from horovod.common.contract.host_updates import HostUpdateResult


class Listener(Protocol):
    """A ``State``."""

    def on_hosts_updated(self, timestamp: float, update_res: HostUpdateResult) -> None:
        """Called from another thread; must not wait."""


class WorkerNotificationManager:
    """Passes news on to all who listen. May be used from any thread.

    Where the news come from is told by whoever joins elastic jobs (``begin_with``); without it there are none.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._listeners: list[Listener] = []
        self._told: list[tuple[float, HostUpdateResult]] = []  # since the members have changed last
        self._epoch: int | None = None
        self._begin: Callable[[], None] | None = None

    def begin_with(self, begin: Callable[[], None]) -> None:
        """``begin`` will be called by each ``init``, and sees to it that ``handle_hosts_updated`` is called."""
        self._begin = begin

    def init(self, *_: object, **__: object) -> None:
        """Listens from now on, if this process is in an elastic job. Arguments are accepted for old programs."""
        if self._begin is not None:
            self._begin()

    def register_listener(self, listener: Listener) -> None:
        """Will be told, once however often it is registered, and is told now what there was to tell since the members
        have changed last: news may be there before the program is ready to hear them."""
        with self._lock:
            if all(one is not listener for one in self._listeners):
                self._listeners.append(listener)
            told = list(self._told)
        for timestamp, update_res in told:
            listener.on_hosts_updated(timestamp, update_res)

    def begin_epoch(self, epoch: int | None = None) -> None:
        """The members have changed; what was told before is done with, and what is still on its way of an epoch
        before."""
        with self._lock:
            self._told, self._epoch = [], epoch

    def remove_listener(self, listener: Listener) -> None:
        """Will not be told any more; harmless when it is not known."""
        with self._lock:
            self._listeners = [one for one in self._listeners if one is not listener]

    def handle_hosts_updated(self, timestamp: float, update_res: HostUpdateResult, epoch: int | None = None) -> None:
        """``timestamp``: s, larger than that of all news before. ``epoch``: whose members the news are of; those of an
        earlier one are passed over."""
        with self._lock:
            if epoch is not None and self._epoch is not None and epoch < self._epoch:
                return
            self._told.append((timestamp, update_res))
            for listener in list(self._listeners):  # here: afterwards an epoch may begin, for which these are no news
                listener.on_hosts_updated(timestamp, update_res)


notification_manager = WorkerNotificationManager()
"""The one of this process."""


@dataclass
class Together:
    """Need the states of all ranks be brought together? All have to come to the same answer: one that has nothing to
    get may be in an epoch with others that have, who would wait for it.

    ``in_sync``: this process's state has missed nothing since it was brought together with those of others.
    ``others_in_sync``: so the launcher says of all members of the epoch; True where there is no such launcher.
    ``holds``: it has been brought together with them once, so it is the state of the training; None: no program that
    knows has begun. ``members``: of the epoch, by rank; empty where no launcher names them.
    """

    in_sync: bool = False
    others_in_sync: bool = True
    holds: bool | None = None
    members: tuple[int, ...] = ()

    @property
    def needed(self) -> bool:
        return not (self.in_sync and self.others_in_sync)

    def begin(self) -> None:
        """A program with a state of its own begins."""
        self.in_sync, self.holds = False, bool(self.holds)

    def done(self) -> None:
        """They have been brought together."""
        self.in_sync = self.others_in_sync = self.holds = True


together = Together()
"""Of this process, whose main thread uses it."""
