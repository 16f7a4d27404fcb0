"""Who is who in an elastic job: the numbers of its workers, their hosts, and their present ranks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from horovod.runner.plan.hosts import Slot
from horovod.runner.verdict.verdict import RankEnd

Result = TypeVar("Result")


class Roster:
    """`hosts`: by number, of all workers that there have been; never changed but by adding."""

    def __init__(self) -> None:
        self.hosts: dict[int, str] = {}
        self._ranks: dict[int, int] = {}  # the last that each has had
        self._failed: set[int] = set()
        self.members: list[int] = []
        """Of the last epoch, by rank."""

    def join(self, number: int, host: str) -> None:
        """A worker has been started."""
        self.hosts[number] = host

    def end(self, number: int, success: bool) -> None:
        """Its process has ended, or is lost with its host."""
        if not success:
            self._failed.add(number)

    def form(self, places: Mapping[int, Slot]) -> None:
        """An epoch is formed of these."""
        self.members = sorted(places, key=lambda number: places[number].rank)
        self._ranks.update({number: slot.rank for number, slot in places.items()})

    def rank_of(self, number: int) -> int | None:
        """Its present rank, or the last it has had; None: it has had none. Before the first epoch that is the number
        itself, which its rank will be if nothing is in the way."""
        return self._ranks.get(number) if self.members else number

    def ends(self, ends: Sequence[RankEnd]) -> list[RankEnd]:
        """Of all ends, whose ranks are numbers, those that decide what has become of the job: of members of the last
        epoch, with their ranks there; of all, where there has been none."""
        if not self.members:
            return list(ends)
        return [replace(end, rank=self._ranks[end.rank]) for end in ends if end.rank in self.members]

    @property
    def last_hosts(self) -> dict[int, str]:
        """Of the last epoch, by rank. Where there has been none, by number: of the workers that have not failed, or of
        all if all have."""
        if not self.members:
            return {number: host for number, host in self.hosts.items() if number not in self._failed} or {**self.hosts}
        return {rank: self.hosts[number] for rank, number in enumerate(self.members)}

    def by_rank(self, results: Mapping[int, Result]) -> dict[int, Result]:
        """What members of the last epoch have left; what all have, by their numbers, where there has been none."""
        if not self.members:
            return dict(results)
        return {rank: results[number] for rank, number in enumerate(self.members) if number in results}
