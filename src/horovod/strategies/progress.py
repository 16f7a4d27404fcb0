"""Progress of the workers of a parameter server: who may continue, and how stale their values are. Pure."""

from collections import Counter
from collections.abc import Iterable


class Progress:
    """Clocks of the workers and versions of the parameters, with bounded staleness (Ho et al. 2013).

    Args:
        workers: Ranks of the workers.
        staleness: Number of steps by which a worker may be ahead of the slowest one; None for no bound.

    Attributes:
        version: Number of updates of the parameters.
        histogram: Number of updates by staleness: the updates between a worker's read and its own update.
    """

    def __init__(self, workers: Iterable[int], staleness: int | None) -> None:
        self.bound = staleness
        self.version = 0
        self.histogram: Counter[int] = Counter()
        self._clocks = dict.fromkeys(workers, 0)
        self._read = dict.fromkeys(self._clocks, 0)

    @property
    def active(self) -> set[int]:
        """Workers that have not left."""
        return set(self._clocks)

    def updated(self, worker: int) -> int:
        """Record that the parameters were updated by a step of this worker, and return its staleness."""
        stale = self.version - self._read[worker]
        self.histogram[stale] += 1
        self.version += 1
        self._clocks[worker] += 1
        return stale

    def updated_by_all(self, workers: Iterable[int]) -> None:
        """Record one update made of a step of each of these workers."""
        for worker in workers:
            self.histogram[self.version - self._read.get(worker, self.version)] += 1
            if worker in self._clocks:
                self._clocks[worker] += 1
        self.version += 1

    def may_continue(self, worker: int) -> bool:
        """Return True unless this worker is too far ahead of the slowest one. The slowest may always continue."""
        return self.bound is None or self._clocks[worker] - min(self._clocks.values()) <= self.bound

    def slowest(self) -> list[int]:
        """Return the workers with the fewest steps."""
        least = min(self._clocks.values(), default=0)
        return [worker for worker, clock in self._clocks.items() if clock == least]

    def read(self, worker: int) -> None:
        """Record that this worker has received the current parameters."""
        self._read[worker] = self.version

    def leave(self, worker: int) -> None:
        """Remove a worker that is done, so that no worker waits for it."""
        self._clocks.pop(worker, None)
        self._read.pop(worker, None)
