"""Workers of an elastic job: their numbers, hosts and ranks, and which of them are stopped by a signal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from horovod.runner.attribution.first_failure import RankEnd
from horovod.runner.plan.hosts import Slot

Result = TypeVar("Result")


class Roster:
    """Workers by number. A worker keeps its number, but its rank can change with each epoch.

    Attributes:
        hosts: Host of each worker ever started, by number. Entries are only added.
        members: Numbers of the last epoch's workers, in rank order.
    """

    def __init__(self) -> None:
        self.hosts: dict[int, str] = {}
        self._ranks: dict[int, int] = {}  # rank of each worker in the last epoch that it was in
        self._failed: set[int] = set()
        self.members: list[int] = []

    def join(self, number: int, host: str) -> None:
        """Record that a worker has been started."""
        self.hosts[number] = host

    def end(self, number: int, success: bool) -> None:
        """Record that the process of a worker has ended or is lost with its host."""
        if not success:
            self._failed.add(number)

    def form(self, places: Mapping[int, Slot]) -> None:
        """Record the members of a new epoch and their slots."""
        self.members = sorted(places, key=lambda number: places[number].rank)
        self._ranks.update({number: slot.rank for number, slot in places.items()})

    def rank_of(self, number: int) -> int | None:
        """Return the worker's current or last rank, or None if it never had one.

        Before the first epoch, the worker's number is returned, which normally becomes its rank.
        """
        return self._ranks.get(number) if self.members else number

    def ends(self, ends: Sequence[RankEnd]) -> list[RankEnd]:
        """Return the exits that decide the job's outcome.

        Args:
            ends: All exits. Their `rank` is the worker's number.

        Returns:
            The exits of the last epoch's members, with their ranks in it. If there was no epoch, all exits.
        """
        if not self.members:
            return list(ends)
        return [replace(end, rank=self._ranks[end.rank]) for end in ends if end.rank in self.members]

    @property
    def last_hosts(self) -> dict[int, str]:
        """Host of each rank in the last epoch.

        If there was no epoch, keys are worker numbers: of the workers that have not failed, or of all if all have
        failed.
        """
        if not self.members:
            return {number: host for number, host in self.hosts.items() if number not in self._failed} or {**self.hosts}
        return {rank: self.hosts[number] for rank, number in enumerate(self.members)}

    def by_rank(self, results: Mapping[int, Result]) -> dict[int, Result]:
        """Return the results of the last epoch's members by rank.

        If there was no epoch, return all results by number.
        """
        if not self.members:
            return dict(results)
        return {rank: results[number] for rank, number in enumerate(self.members) if number in results}


# Workers that are stopped (by SIGSTOP or a debugger), and since when. Callers pass all times (monotonic, s).


class StoppedWorkers:
    """Stopped workers, with the timeout in seconds after which they count as stuck."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._since: dict[int, float] = {}

    def stops(self, number: int, now: float) -> None:
        """Record that a signal has stopped a worker."""
        self._since[number] = now

    def goes_on(self, number: int) -> None:
        """Record that a worker runs again or has ended. Does nothing if it was not stopped."""
        self._since.pop(number, None)

    def next_time(self) -> float | None:
        """Return the time at which the next stopped worker exceeds the timeout, or None if no worker is stopped."""
        return min((since + self._timeout for since in self._since.values()), default=None)

    def take_late(self, now: float) -> list[int]:
        """Return the workers that have exceeded the timeout. Each worker is returned once per timeout."""
        late = [number for number, since in self._since.items() if now >= since + self._timeout]
        self._since.update(dict.fromkeys(late, now))
        return late

    def postpone(self, seconds: float) -> None:
        """Extend all deadlines by `seconds`, during which the launcher did not run."""
        self._since = {number: since + seconds for number, since in self._since.items()}
