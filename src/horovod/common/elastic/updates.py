"""Host updates on their way from the launcher to the states of this process, and whether these states need a sync.

When a worker joins an epoch, it reports whether its state is in sync; with its place it learns whether all are.
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

    The code that joins elastic jobs provides the source of updates (``begin_with``); without it there are none.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._listeners: list[Listener] = []
        self._told: list[tuple[float, HostUpdateResult]] = []  # updates since the last change of members
        self._epoch: int | None = None
        self._begin: Callable[[], None] | None = None

    def begin_with(self, begin: Callable[[], None]) -> None:
        """Set a function that each ``init`` calls and that makes ``handle_hosts_updated`` be called."""
        self._begin = begin

    def init(self, *_: object, **__: object) -> None:
        """Start to receive updates, if this process is in an elastic job. Arguments are ignored, for old programs."""
        if self._begin is not None:
            self._begin()

    def register_listener(self, listener: Listener) -> None:
        """Register a listener; registering it again has no effect.

        It immediately gets all updates since the last change of members, because updates may arrive before the program
        listens.
        """
        with self._lock:
            if all(one is not listener for one in self._listeners):
                self._listeners.append(listener)
            told = list(self._told)
        for timestamp, update_res in told:
            listener.on_hosts_updated(timestamp, update_res)

    def begin_epoch(self, epoch: int | None = None) -> None:
        """Forget earlier updates after the members have changed, and ignore late ones of earlier epochs."""
        with self._lock:
            self._told, self._epoch = [], epoch

    def remove_listener(self, listener: Listener) -> None:
        """Remove a listener; no effect if it is not registered."""
        with self._lock:
            self._listeners = [one for one in self._listeners if one is not listener]

    def handle_hosts_updated(self, timestamp: float, update_res: HostUpdateResult, epoch: int | None = None) -> None:
        """Pass an update to all listeners.

        Args:
            timestamp: Seconds; larger than that of all earlier updates.
            update_res: Kind of the update.
            epoch: Epoch that the update belongs to; updates of earlier epochs are ignored.
        """
        with self._lock:
            if epoch is not None and self._epoch is not None and epoch < self._epoch:
                return
            self._told.append((timestamp, update_res))
            # Within the lock, because an epoch may begin afterwards for which this update is outdated.
            for listener in list(self._listeners):
                listener.on_hosts_updated(timestamp, update_res)


notification_manager = WorkerNotificationManager()
"""The instance of this process."""


@dataclass
class Together:
    """Record of whether the states of all ranks must be synchronized.

    All ranks must come to the same answer. A rank that needs nothing may be in an epoch with others that do, and these
    would wait for it.

    Attributes:
        in_sync: True if this process's state has missed nothing since the last synchronization.
        others_in_sync: True if the launcher reports the same of all members of the epoch, or if there is no such
            launcher.
        holds: True if this process's state has been synchronized once, so that it is the state of the training. None
            until an elastic program begins.
        members: Workers of the epoch, by rank; empty if no launcher names them.
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
        """Begin an elastic program, whose state is not in sync yet."""
        self.in_sync, self.holds = False, bool(self.holds)

    def done(self) -> None:
        """Record that the states have been synchronized."""
        self.in_sync = self.others_in_sync = self.holds = True


together = Together()
"""The instance of this process, used by its main thread only."""
