"""The workers of an elastic job as its membership knows them. Pure.

STARTING --it has called hvd.init()--> WAITING --an epoch is formed with it--> WORKING
                                          '---------- it comes back -------------'
WORKING --it says that it ends--> ENDING
from everywhere: KILLED (SIGKILL is on its way) and GONE (its process is no more, or its host is lost)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from horovod.runner.elastic.placement import Candidate

MachineOf = Callable[[str], str]
"""Where what is called a host is only a part of a machine, the name of that, in which ranks are local to each other."""


class Life(Enum):
    STARTING = "starting"
    WAITING = "waiting"
    WORKING = "working"
    ENDING = "ending"
    KILLED = "killed"
    GONE = "gone"


@dataclass
class Worker:
    """One process. `epoch`: the last it was a member of, 0 before the first."""

    number: int
    host: str
    machine: str
    life: Life = Life.STARTING
    epoch: int = 0
    rank: int | None = None  # in that epoch
    first: bool = False  # no epoch has been formed yet, so its rank will be its number, if nothing is in the way
    formed: bool = False  # it is part of the running epoch
    survivor: bool = False  # it has been part of an epoch that ran
    holds: bool = False  # the state of the training: so it is taken of who works in such an epoch, until it says itself
    leaves: bool = False  # it has no place any more
    dismissed: bool = False  # and knows it
    heard: bool = False  # it has noticed by itself that its epoch is over
    deadline: float | None = None  # by when it has to be where it is expected
    why: str = ""  # it will be killed then

    @property
    def alive(self) -> bool:
        """Does it live, and may it go on?"""
        return self.life not in (Life.ENDING, Life.KILLED, Life.GONE)

    def __str__(self) -> str:
        rank = self.number if self.rank is None and self.first else self.rank
        return f"{f'new worker {self.number}' if rank is None else f'rank {rank}'} on host {self.host}"

    def expect(self, by: float, why: str) -> None:
        """It is killed, for this reason, unless what is expected of it happens before; an earlier deadline counts."""
        if self.alive and (self.deadline is None or by < self.deadline):
            self.deadline, self.why = by, why

    def came(self) -> None:
        """What was expected has happened."""
        self.deadline, self.why = None, ""


class Workers:
    """Those that live. Iterating gives them in the order of their numbers."""

    def __init__(self, machine_of: MachineOf = str) -> None:
        self._machine_of = machine_of
        self._living: dict[int, Worker] = {}
        self._added = 0

    def add(self, host: str, first: bool = False) -> Worker:
        worker = Worker(self._added, host, self._machine_of(host), first=first)
        self._added += 1
        self._living[worker.number] = worker
        return worker

    def machines(self, hosts: Iterable[str]) -> list[str]:
        """Of these hosts, each once."""
        return list(dict.fromkeys(map(self._machine_of, hosts)))

    def remove(self, worker: Worker) -> None:
        """It is no more, and its number is not given to another."""
        worker.life = Life.GONE
        self._living.pop(worker.number, None)

    def find(self, number: int) -> Worker | None:
        """The worker of this number if it lives."""
        return self._living.get(number)

    def at_work(self, number: int, epoch: int) -> Worker | None:
        """The worker of this number if it works in this epoch."""
        worker = self._living.get(number)
        return worker if worker is not None and worker.life is Life.WORKING and worker.epoch == epoch else None

    def expect_starts(self, now: float, seconds: float, late: str) -> None:
        """Whoever starts has so long from now on, unless it has a deadline. `late`: what is said of it then."""
        for worker in self.of(Life.STARTING):
            if worker.deadline is None:
                worker.expect(now + seconds, late)

    def __iter__(self) -> Iterator[Worker]:
        return iter(list(self._living.values()))

    def __len__(self) -> int:
        return len(self._living)

    def outside(self, hosts: Collection[str]) -> int:
        """How many may go on that are on other hosts."""
        return sum(1 for worker in self if worker.alive and worker.host not in hosts)

    def of(self, *lives: Life) -> list[Worker]:
        return [worker for worker in self if worker.life in lives]

    def members(self, epoch: int) -> list[Worker]:
        """Those of this epoch, by rank."""
        found = [worker for worker in self if worker.epoch == epoch and worker.rank is not None]
        return sorted(found, key=lambda worker: worker.rank or 0)

    @property
    def any_started(self) -> bool:
        """Has there ever been one?"""
        return self._added > 0

    @property
    def survivors(self) -> int:
        """How many of those that may go on have been part of an epoch that ran?"""
        return sum(1 for worker in self if worker.survivor and worker.alive)

    @property
    def staying(self) -> int:
        """How many have a place, and keep it until they end?"""
        return sum(1 for worker in self if (worker.alive or worker.life is Life.ENDING) and not worker.leaves)

    @property
    def hold_state(self) -> bool:
        """Is there one that holds the state of the training, even if it ends?"""
        return any(w.holds and (w.alive or w.life is Life.ENDING) and not w.dismissed for w in self)

    def fit(self, slots: Mapping[str, int]) -> None:
        """Each host has so many slots now: who survives keeps one before who is new, and who has none leaves."""
        for host in {worker.host for worker in self}:
            there = [worker for worker in self if worker.host == host and worker.alive and not worker.dismissed]
            there.sort(key=lambda worker: (not worker.holds, worker.rank or 0, worker.number))
            for place, worker in enumerate(there):
                worker.leaves = place >= slots.get(host, 0)

    def taken(self) -> dict[str, int]:
        """Slots by host that are in use."""
        return count(worker.host for worker in self)

    def next_deadline(self) -> float | None:
        return min((worker.deadline for worker in self if worker.deadline is not None), default=None)

    def postpone(self, seconds: float) -> None:
        """All deadlines, by so much."""
        for worker in self:
            if worker.deadline is not None:
                worker.deadline += seconds


def candidates(workers: Iterable[Worker]) -> list[Candidate]:
    """For the next epoch."""
    return [Candidate(one.number, one.machine, one.rank if one.holds else None) for one in workers]


def count(names: Iterable[str]) -> dict[str, int]:
    """How often there is each of them."""
    counted: dict[str, int] = {}
    for name in names:
        counted[name] = counted.get(name, 0) + 1
    return counted
