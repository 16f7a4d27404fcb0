"""Delivery of host updates to this process's elastic states, and the record of whether states need a sync.

When a worker joins an epoch, it reports whether its state is in sync. With its place, the launcher tells it whether the
states of all workers are.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from horovod.common.contract.membership import HostUpdateResult


class Listener(Protocol):
    """Receiver of host updates, such as a ``State``."""

    def on_hosts_updated(self, timestamp: float, update_res: HostUpdateResult) -> None:
        """Handle a host update. Called from another thread; must not block."""


class WorkerNotificationManager:
    """Dispatcher of host updates to all listeners. Thread-safe.

    The updates come from the code that joins elastic jobs, which calls ``begin_with``. Outside elastic jobs there are
    none.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._listeners: list[Listener] = []
        self._told: list[tuple[float, HostUpdateResult]] = []  # all updates since the last change of members
        self._epoch: int | None = None
        self._begin: Callable[[], None] | None = None

    def begin_with(self, begin: Callable[[], None]) -> None:
        """Set the function with which ``init`` starts the source of updates, which calls ``handle_hosts_updated``."""
        self._begin = begin

    def init(self, *_: object, **__: object) -> None:
        """Start to receive updates in an elastic job. Arguments are ignored; older programs pass some."""
        if self._begin is not None:
            self._begin()

    def register_listener(self, listener: Listener) -> None:
        """Register a listener; registering it again has no effect.

        The listener immediately gets all updates since the last change of members, because some may have arrived before
        the program listened.
        """
        with self._lock:
            if all(one is not listener for one in self._listeners):
                self._listeners.append(listener)
            told = list(self._told)
        for timestamp, update_res in told:
            listener.on_hosts_updated(timestamp, update_res)

    def begin_epoch(self, epoch: int | None = None) -> None:
        """Forget all updates after the members have changed. From now on, ignore updates of earlier epochs."""
        with self._lock:
            self._told, self._epoch = [], epoch

    def remove_listener(self, listener: Listener) -> None:
        """Remove a listener; no effect if it is not registered."""
        with self._lock:
            self._listeners = [one for one in self._listeners if one is not listener]

    def handle_hosts_updated(self, timestamp: float, update_res: HostUpdateResult, epoch: int | None = None) -> None:
        """Pass an update to all listeners.

        Args:
            timestamp: Time in seconds; later than all earlier updates.
            update_res: Kind of the update.
            epoch: Epoch that the update belongs to; updates of earlier epochs are ignored.
        """
        with self._lock:
            if epoch is not None and self._epoch is not None and epoch < self._epoch:
                return
            self._told.append((timestamp, update_res))
            # Call the listeners with the lock held: otherwise a new epoch could begin first, for which this update is
            # outdated.
            for listener in list(self._listeners):
                listener.on_hosts_updated(timestamp, update_res)


notification_manager = WorkerNotificationManager()
"""The instance of this process."""


@dataclass
class Together:
    """Record of whether the states of all ranks must be synchronized.

    All ranks must come to the same answer. Even a rank whose state is in sync must take part if another rank's state is
    not, because that rank would wait for it.

    Attributes:
        in_sync: True if this process's state has missed nothing since the last synchronization.
        others_in_sync: True if the launcher has reported that the states of all members of the epoch are in sync. Also
            True without an elastic launcher.
        holds: True if this process's state has been synchronized at least once, so that it contains the progress of
            training. None until an elastic program begins.
        members: Workers of the epoch, by rank; empty outside elastic jobs.
    """

    in_sync: bool = False
    others_in_sync: bool = True
    holds: bool | None = None
    members: tuple[int, ...] = ()

    @property
    def needed(self) -> bool:
        """True if the states of all ranks must be synchronized."""
        return not (self.in_sync and self.others_in_sync)

    def begin(self) -> None:
        """Record that an elastic program begins, whose state is not in sync yet."""
        self.in_sync, self.holds = False, bool(self.holds)

    def done(self) -> None:
        """Record that the states have been synchronized."""
        self.in_sync = self.others_in_sync = self.holds = True


together = Together()
"""The instance of this process, used by its main thread only."""
