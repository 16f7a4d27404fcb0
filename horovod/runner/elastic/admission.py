"""When who is new is let into a job that trains, and what those who train are told of others that come or have to go.
Pure: times are arguments (monotonic, s)."""

from __future__ import annotations

from collections.abc import Iterable

from horovod.common.contract.host_updates import HostUpdateResult
from horovod.runner.elastic.phases import TOGETHER
from horovod.runner.elastic.workers import Worker


class Admission:
    """Of one job."""

    def __init__(self, gather: float | None = None) -> None:
        """`gather`: s that workers of the first epoch wait for others that are starting; None: as in later epochs."""
        self._wait = TOGETHER if gather is None else gather
        self._ready_since: float | None = None  # somebody new waits since then to be let in
        self._told = HostUpdateResult.no_update  # to the members of this epoch

    def next_time(self, now: float) -> float | None:
        """When who is ready has waited long enough for others; None: nobody waits for that."""
        if self._ready_since is None or now >= self._ready_since + self._wait:
            return None
        return self._ready_since + self._wait

    def together(self, waiting: Iterable[Worker], others_start: bool, now: float) -> bool:
        """Need who is new among those that wait not wait for others that are about to be ready as well?"""
        if all(worker.survivor for worker in waiting):
            self._ready_since = None
        elif self._ready_since is None:
            self._ready_since = now
        if not others_start:
            return True
        return self._ready_since is not None and now >= self._ready_since + self._wait

    def update(self, added: bool, removed: bool) -> HostUpdateResult:
        """What members are to be told: that others can join, that some have no place any more; nothing that they know
        already."""
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
        """A new epoch, whose members know of nothing yet."""
        self._told = HostUpdateResult.no_update
        self._wait = TOGETHER

    def postpone(self, seconds: float) -> None:
        """The launcher itself has stood still for so long."""
        self._ready_since = None if self._ready_since is None else self._ready_since + seconds
