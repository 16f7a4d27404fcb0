"""Delivers host updates to this process's elastic states, and tracks when a sync is needed.

When a worker joins an epoch, it tells the launcher whether its state is in sync. The launcher replies whether all
workers' states are in sync.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from horovod.common.contract.membership import HostUpdateResult


class Listener(Protocol):
    """Interface of objects that receive host updates, such as a ``State``."""

    def on_hosts_updated(self, timestamp: float, update_res: HostUpdateResult) -> None:
        """Handle a change of the job's hosts. Called in another thread, and must not block."""


class WorkerNotificationManager:
    """Passes host updates to all registered listeners. Thread-safe.

    In an elastic job, the code that joins the job calls ``begin_with`` and delivers the updates. In other jobs there
    are no updates.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._listeners: list[Listener] = []
        # All host updates since the last membership change.
        self._updates: list[tuple[float, HostUpdateResult]] = []
        self._epoch: int | None = None
        self._begin: Callable[[], None] | None = None

    def begin_with(self, begin: Callable[[], None]) -> None:
        """Set the function that ``init`` calls to start the delivery of host updates.

        The updates are delivered to ``handle_hosts_updated``.
        """
        self._begin = begin

    def init(self, *_: object, **__: object) -> None:
        """Start receiving updates if the job is elastic. Arguments from older programs are accepted and ignored."""
        if self._begin is not None:
            self._begin()

    def register_listener(self, listener: Listener) -> None:
        """Add a listener. Adding the same listener again has no effect.

        The listener is immediately called with all updates since the last membership change, because some of them may
        have arrived before it was registered.
        """
        with self._lock:
            if all(one is not listener for one in self._listeners):
                self._listeners.append(listener)
            updates = list(self._updates)
        for timestamp, update_res in updates:
            listener.on_hosts_updated(timestamp, update_res)

    def begin_epoch(self, epoch: int | None = None) -> None:
        """Drop all updates after a membership change, and from now on ignore updates from earlier epochs."""
        with self._lock:
            self._updates, self._epoch = [], epoch

    def remove_listener(self, listener: Listener) -> None:
        """Remove a listener. Has no effect if the listener is not registered."""
        with self._lock:
            self._listeners = [one for one in self._listeners if one is not listener]

    def handle_hosts_updated(self, timestamp: float, update_res: HostUpdateResult, epoch: int | None = None) -> None:
        """Pass an update to all listeners.

        Args:
            timestamp: Time of the update in seconds. It must be later than the times of all previous updates.
            update_res: Kind of the update.
            epoch: Epoch to which the update belongs. Updates of earlier epochs are ignored.
        """
        with self._lock:
            if epoch is not None and self._epoch is not None and epoch < self._epoch:
                return
            self._updates.append((timestamp, update_res))
            # Hold the lock while calling the listeners, because a new epoch would make the update outdated.
            for listener in list(self._listeners):
                listener.on_hosts_updated(timestamp, update_res)


notification_manager = WorkerNotificationManager()
"""The only instance in this process."""


@dataclass
class SyncState:
    """Tracks whether the ranks' states must be synchronized.

    All ranks must reach the same decision. A rank that is in sync must still take part if another rank is not, because
    the other rank waits for it.

    Attributes:
        in_sync: True if this process's state includes all changes since the last synchronization.
        peers_in_sync: True if the launcher has reported that the states of all members of the epoch are in sync. Also
            True without an elastic launcher.
        holds: True if this process's state has been synchronized at least once and so contains the progress of
            training. None until an elastic program begins.
        members: Workers of the epoch, by rank. It is empty outside elastic jobs.
    """

    in_sync: bool = False
    peers_in_sync: bool = True
    holds: bool | None = None
    members: tuple[int, ...] = ()

    @property
    def needed(self) -> bool:
        """True if the states of all ranks must be synchronized."""
        return not (self.in_sync and self.peers_in_sync)

    def begin(self) -> None:
        """Record that an elastic program has started and its state is not yet in sync."""
        self.in_sync, self.holds = False, bool(self.holds)

    def record_sync(self) -> None:
        """Record that the states have been synchronized."""
        self.in_sync = self.peers_in_sync = self.holds = True


sync_state = SyncState()
"""The only instance in this process. Only the main thread uses it."""
