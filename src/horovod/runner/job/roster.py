"""Workers of an elastic job: their numbers, hosts and ranks, and which of them are stopped. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from horovod.runner.attribution.first_failure import RankEnd
from horovod.runner.plan.hosts import Slot

Result = TypeVar("Result")


class Roster:
    """Workers by number. A worker keeps its number while its rank may change with each epoch.

    Attributes:
        hosts: Host by number, of all workers ever started. Entries are only added.
        members: Numbers of the last epoch's workers, in rank order.
    """

    def __init__(self) -> None:
        self.hosts: dict[int, str] = {}
        self._ranks: dict[int, int] = {}  # last rank of each worker
        self._failed: set[int] = set()
        self.members: list[int] = []

    def join(self, number: int, host: str) -> None:
        """Record that a worker has been started."""
        self.hosts[number] = host

    def end(self, number: int, success: bool) -> None:
        """Record that a worker's process has ended, or is lost with its host."""
        if not success:
            self._failed.add(number)

    def form(self, places: Mapping[int, Slot]) -> None:
        """Record the members of a new epoch and their places."""
        self.members = sorted(places, key=lambda number: places[number].rank)
        self._ranks.update({number: slot.rank for number, slot in places.items()})

    def rank_of(self, number: int) -> int | None:
        """Return the worker's current or last rank, None if it has had none.

        Before the first epoch, that is its number, which normally becomes its rank.
        """
        return self._ranks.get(number) if self.members else number

    def ends(self, ends: Sequence[RankEnd]) -> list[RankEnd]:
        """Return the ends that decide the job's outcome.

        Args:
            ends: All ends, with worker numbers as ranks.

        Returns:
            The ends of the last epoch's members, with their ranks there; all ends if there was no epoch.
        """
        if not self.members:
            return list(ends)
        return [replace(end, rank=self._ranks[end.rank]) for end in ends if end.rank in self.members]

    @property
    def last_hosts(self) -> dict[int, str]:
        """Hosts of the last epoch by rank.

        Without any epoch, hosts by number: of the workers that have not failed, or of all if all have.
        """
        if not self.members:
            return {number: host for number, host in self.hosts.items() if number not in self._failed} or {**self.hosts}
        return {rank: self.hosts[number] for rank, number in enumerate(self.members)}

    def by_rank(self, results: Mapping[int, Result]) -> dict[int, Result]:
        """Return the results of the last epoch's members by rank; without any epoch, all results by number."""
        if not self.members:
            return dict(results)
        return {rank: results[number] for rank, number in enumerate(self.members) if number in results}


# Workers that are stopped (SIGSTOP, a debugger), and since when. Pure: times are arguments (monotonic, s).


class StoppedWorkers:
    """Stopped workers, with a timeout in seconds like that for silent agents."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._since: dict[int, float] = {}

    def stops(self, number: int, now: float) -> None:
        """Record that a worker is stopped."""
        self._since[number] = now

    def goes_on(self, number: int) -> None:
        """Record that a worker runs again or has ended, whether or not it was stopped."""
        self._since.pop(number, None)

    def next_time(self) -> float | None:
        """Return when the next worker exceeds the timeout, or None if no worker is stopped."""
        return min((since + self._timeout for since in self._since.values()), default=None)

    def take_late(self, now: float) -> list[int]:
        """Return the workers that have exceeded the timeout; each is returned once per timeout."""
        late = [number for number, since in self._since.items() if now >= since + self._timeout]
        self._since.update(dict.fromkeys(late, now))
        return late

    def postpone(self, seconds: float) -> None:
        """Extend all deadlines by the seconds during which the launcher did not run."""
        self._since = {number: since + seconds for number, since in self._since.items()}
