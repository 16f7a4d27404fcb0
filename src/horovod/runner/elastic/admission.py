"""When new workers are admitted to a job, and when members are told that workers could join or must leave.

Pure: times are arguments (monotonic, s).
"""

from __future__ import annotations

from collections.abc import Iterable

from horovod.common.contract.membership import HostUpdateResult
from horovod.runner.elastic.phases import TOGETHER
from horovod.runner.elastic.workers import Worker


class Admission:
    """Admission timers and notifications of one job."""

    def __init__(self, gather: float | None = None) -> None:
        """Create the state of a new job.

        Args:
            gather: Seconds that ready workers of the first epoch wait for others that are starting; default as in later
                epochs.
        """
        self._wait = TOGETHER if gather is None else gather
        self._ready_since: float | None = None  # since when a new worker has been waiting
        self._told = HostUpdateResult.no_update  # what the members of this epoch have been told

    def next_time(self, now: float) -> float | None:
        """Return when ready workers have waited long enough for others, or None if none waits."""
        if self._ready_since is None or now >= self._ready_since + self._wait:
            return None
        return self._ready_since + self._wait

    def together(self, waiting: Iterable[Worker], others_start: bool, now: float) -> bool:
        """Return True if the new workers among `waiting` need not wait any longer for others that are starting."""
        if all(worker.survivor for worker in waiting):
            self._ready_since = None
        elif self._ready_since is None:
            self._ready_since = now
        if not others_start:
            return True
        return self._ready_since is not None and now >= self._ready_since + self._wait

    def update(self, added: bool, removed: bool) -> HostUpdateResult:
        """Return what to tell the members: workers can join (`added`) or must leave (`removed`). Tells it only once."""
        update = HostUpdateResult.no_update
        if added:
            update |= HostUpdateResult.added
        if removed:
            update |= HostUpdateResult.removed
        if not update & ~self._told:
            return HostUpdateResult.no_update
        self._told |= update
        return update

    def formed(self) -> None:
        """Record a new epoch, whose members have been told nothing yet."""
        self._told = HostUpdateResult.no_update
        self._wait = TOGETHER

    def postpone(self, seconds: float) -> None:
        """Extend all deadlines by the seconds during which the launcher did not run."""
        self._ready_since = None if self._ready_since is None else self._ready_since + seconds
