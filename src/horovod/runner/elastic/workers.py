"""Worker processes of an elastic job, and their states as the launcher sees them.

A worker is STARTING until it calls hvd.init(), and then WAITING. As a member of an epoch it is WORKING. When its epoch
is over, it returns to WAITING. A worker that has reported its exit is ENDING. From every state, a worker can become
KILLED (SIGKILL was sent) or GONE (its process has exited, or its host is lost).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from horovod.runner.plan.hosts import Slot


@dataclass(frozen=True)
class Candidate:
    """Worker that can be a member of the next epoch.

    Attributes:
        worker: Number of the worker.
        host: Host on which the worker runs.
        rank: Rank in the last epoch, or None for a new worker.
    """

    worker: int
    host: str
    rank: int | None = None


def order(candidates: Sequence[Candidate], hosts: Sequence[str]) -> list[Candidate]:
    """Return the candidates in the order of their ranks in the next epoch.

    The ranks of a host are consecutive. Hosts with survivors come first and keep their order. On each host, survivors
    keep their order, and new workers follow. Rank 0, which broadcasts its state to all others, is therefore a survivor.
    A survivor's rank can increase only if a worker joins on its host or on an earlier host.

    Args:
        candidates: Workers that can be members of the next epoch.
        hosts: Known hosts, in order of preference.
    """
    first: dict[str, int] = {}
    for one in candidates:
        if one.rank is not None:
            first[one.host] = min(one.rank, first.get(one.host, one.rank))
    known = {host: place for place, host in enumerate(hosts)}

    def key(one: Candidate) -> tuple[bool, int, str, bool, int, int]:
        survives = one.host in first
        place = first[one.host] if survives else known.get(one.host, len(known))
        new = one.rank is None
        return not survives, place, one.host, new, one.worker if new else 0, 0 if one.rank is None else one.rank

    return sorted(candidates, key=key)


def choose(candidates: Sequence[Candidate], max_size: int | None, hosts: Sequence[str]) -> list[Candidate]:
    """Select at most `max_size` candidates, and return them in rank order. Survivors are selected first."""
    ordered = order(candidates, hosts)
    if max_size is None or len(ordered) <= max_size:
        return ordered
    kept = sorted(ordered, key=lambda one: one.rank is None)[:max_size]
    return order(kept, hosts)


def places(ordered: Sequence[Candidate]) -> dict[int, Slot]:
    """Return a mapping from worker number to slot. `ordered` contains the workers in rank order."""
    on_host: dict[str, list[int]] = {}
    for one in ordered:
        on_host.setdefault(one.host, []).append(one.worker)
    assigned = {}
    for rank, one in enumerate(ordered):
        local = on_host[one.host].index(one.worker)
        across = [host for host, workers in on_host.items() if len(workers) > local]
        assigned[one.worker] = Slot(
            rank=rank,
            size=len(ordered),
            local_rank=local,
            local_size=len(on_host[one.host]),
            cross_rank=across.index(one.host),
            cross_size=len(across),
            hostname=one.host,
        )
    return assigned


def foreseen(candidates: Sequence[Candidate]) -> dict[int, Slot]:
    """Return the slot that each worker would get if all candidates became members of the next epoch.

    The candidates must be passed in the order in which they were started, which is also the order of their hosts.
    """
    return places(order(candidates, list(dict.fromkeys(one.host for one in candidates))))


def free_slots(slots: Mapping[str, int], used: Mapping[str, int]) -> list[str]:
    """Return one host name for each worker that can be started.

    A host with several free slots appears several times.
    """
    return [host for host, count in slots.items() for _ in range(count - used.get(host, 0))]


MachineOf = Callable[[str], str]
"""Function from a host to its machine, if a host is only a part of one. Ranks on a machine are local to each other."""


class Life(Enum):
    """State of a worker process."""

    STARTING = "starting"
    WAITING = "waiting"
    WORKING = "working"
    ENDING = "ending"
    KILLED = "killed"
    EXITED = "gone"


@dataclass
class Worker:
    """A worker process of an elastic job and its state.

    Attributes:
        number: Number of the worker, unique within the job.
        host: Host on which the worker runs.
        machine: Machine to which the host belongs.
        life: State of the process.
        epoch: Last epoch in which the worker was a member, or 0 if it never was.
        rank: Rank in that epoch, or None.
        first: True until the first epoch is formed. Until then, the worker's number is its expected rank.
        formed: True if the worker has connected to the other members of its epoch.
        survivor: True if the worker was a member of an epoch that was running.
        holds: True if the worker holds the training state. A member of a running epoch is assumed to hold it.
        leaves: True if the worker has lost its slot.
        dismissed: True if the worker was notified that it has lost its slot.
        noticed_end: True if the worker has noticed that its epoch is over.
        deadline: Time at which the worker is killed unless an expected event occurs, or None.
        why: Reason to show if the worker is killed at the deadline.
    """

    number: int
    host: str
    machine: str
    life: Life = Life.STARTING
    epoch: int = 0
    rank: int | None = None
    first: bool = False
    formed: bool = False
    survivor: bool = False
    holds: bool = False
    leaves: bool = False
    dismissed: bool = False
    noticed_end: bool = False
    deadline: float | None = None
    why: str = ""

    @property
    def alive(self) -> bool:
        """True if the process is running and has not reported that it is exiting."""
        return self.life not in (Life.ENDING, Life.KILLED, Life.EXITED)

    def __str__(self) -> str:
        rank = self.number if self.rank is None and self.first else self.rank
        return f"{f'new worker {self.number}' if rank is None else f'rank {rank}'} on host {self.host}"

    def expect(self, by: float, why: str) -> None:
        """Set the deadline after which the worker is killed, unless it already has an earlier deadline.

        `why` is the reason shown to the user if the worker is killed.
        """
        if self.alive and (self.deadline is None or by < self.deadline):
            self.deadline, self.why = by, why

    def clear_deadline(self) -> None:
        """Remove the worker's deadline, because the worker has responded."""
        self.deadline, self.why = None, ""


class Workers:
    """Collection of all workers that have not exited. Iteration yields them in the order of their numbers."""

    def __init__(self, machine_of: MachineOf = str) -> None:
        self._machine_of = machine_of
        self._living: dict[int, Worker] = {}
        self._added = 0

    def add(self, host: str, first: bool = False) -> Worker:
        """Add a worker with a new number. `first` is True if no epoch has been formed yet."""
        worker = Worker(self._added, host, self._machine_of(host), first=first)
        self._added += 1
        self._living[worker.number] = worker
        return worker

    def machines(self, hosts: Iterable[str]) -> list[str]:
        """Return the physical machines of these hosts, without duplicates."""
        return list(dict.fromkeys(map(self._machine_of, hosts)))

    def remove(self, worker: Worker) -> None:
        """Remove a worker whose process has exited. Its number is not reused."""
        worker.life = Life.EXITED
        self._living.pop(worker.number, None)

    def find(self, number: int) -> Worker | None:
        """Return the worker with this number, or None if it has exited."""
        return self._living.get(number)

    def at_work(self, number: int, epoch: int) -> Worker | None:
        """Return the worker with this number if it is a working member of this epoch. Otherwise, return None."""
        worker = self._living.get(number)
        return worker if worker is not None and worker.life is Life.WORKING and worker.epoch == epoch else None

    def expect_starts(self, now: float, seconds: float, late: str) -> None:
        """Set a deadline for all starting workers that have none. `late` is the reason to show if they are killed."""
        for worker in self.of(Life.STARTING):
            if worker.deadline is None:
                worker.expect(now + seconds, late)

    def __iter__(self) -> Iterator[Worker]:
        return iter(list(self._living.values()))

    def __len__(self) -> int:
        return len(self._living)

    def outside(self, hosts: Collection[str]) -> int:
        """Return the number of running workers whose host is not in `hosts`, excluding workers that are exiting."""
        return sum(1 for worker in self if worker.alive and worker.host not in hosts)

    def of(self, *lives: Life) -> list[Worker]:
        """Return all workers that are in one of these states."""
        return [worker for worker in self if worker.life in lives]

    def members(self, epoch: int) -> list[Worker]:
        """Return the members of the epoch in rank order."""
        found = [worker for worker in self if worker.epoch == epoch and worker.rank is not None]
        return sorted(found, key=lambda worker: worker.rank or 0)

    @property
    def any_started(self) -> bool:
        """True if at least one worker was started during the job."""
        return self._added > 0

    @property
    def survivors(self) -> int:
        """Number of running workers that have already taken part in training."""
        return sum(1 for worker in self if worker.survivor and worker.alive)

    @property
    def staying(self) -> int:
        """Number of workers that occupy a slot and do not have to leave it."""
        return sum(1 for worker in self if (worker.alive or worker.life is Life.ENDING) and not worker.leaves)

    @property
    def hold_state(self) -> bool:
        """True if any worker has the training state. Workers that are exiting also count."""
        return any(w.holds and (w.alive or w.life is Life.ENDING) and not w.dismissed for w in self)

    def fit(self, slots: Mapping[str, int]) -> None:
        """Mark workers that must leave because their hosts have too few slots.

        Workers that hold the training state are the last to leave.
        """
        for host in {worker.host for worker in self}:
            there = [worker for worker in self if worker.host == host and worker.alive and not worker.dismissed]
            there.sort(key=lambda worker: (not worker.holds, worker.rank or 0, worker.number))
            for place, worker in enumerate(there):
                worker.leaves = place >= slots.get(host, 0)

    def used_slots(self) -> dict[str, int]:
        """Return the number of slots in use on each host."""
        return count(worker.host for worker in self)

    def next_deadline(self) -> float | None:
        """Return the earliest deadline of all workers, or None."""
        return min((worker.deadline for worker in self if worker.deadline is not None), default=None)

    def postpone(self, seconds: float) -> None:
        """Extend the deadlines of all workers by `seconds`."""
        for worker in self:
            if worker.deadline is not None:
                worker.deadline += seconds


def candidates(workers: Iterable[Worker]) -> list[Candidate]:
    """Return the workers as candidates for the next epoch."""
    return [Candidate(one.number, one.machine, one.rank if one.holds else None) for one in workers]


def count(names: Iterable[str]) -> dict[str, int]:
    """Return how often each name occurs in `names`."""
    counted: dict[str, int] = {}
    for name in names:
        counted[name] = counted.get(name, 0) + 1
    return counted
