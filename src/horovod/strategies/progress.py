"""Progress of the workers of a parameter server, and the staleness of their parameters."""

from collections import Counter
from collections.abc import Iterable


class Progress:
    """Step counts of the workers and version of the parameters, with bounded staleness (Ho et al. 2013).

    Args:
        workers: Ranks of the workers.
        staleness: Maximum number of steps by which a worker can be ahead of the slowest worker. None for no limit.

    Attributes:
        version: Number of updates of the parameters so far.
        histogram: Maps each staleness to the number of updates with it. Staleness is the number of other updates
            between the time a worker received the parameters and its own update.
    """

    def __init__(self, workers: Iterable[int], staleness: int | None) -> None:
        self.bound = staleness
        self.version = 0
        self.histogram: Counter[int] = Counter()
        self._clocks = dict.fromkeys(workers, 0)
        self._read = dict.fromkeys(self._clocks, 0)

    @property
    def active(self) -> set[int]:
        """Ranks of the workers that are still training."""
        return set(self._clocks)

    def updated(self, worker: int) -> int:
        """Record that a step of this worker has updated the parameters, and return the staleness of the update."""
        stale = self.version - self._read[worker]
        self.histogram[stale] += 1
        self.version += 1
        self._clocks[worker] += 1
        return stale

    def updated_by_all(self, workers: Iterable[int]) -> None:
        """Record one update that combines a step of each of these workers."""
        for worker in workers:
            self.histogram[self.version - self._read.get(worker, self.version)] += 1
            if worker in self._clocks:
                self._clocks[worker] += 1
        self.version += 1

    def may_continue(self, worker: int) -> bool:
        """Return True unless this worker is too far ahead of the slowest worker. Always True for the slowest."""
        return self.bound is None or self._clocks[worker] - min(self._clocks.values()) <= self.bound

    def slowest(self) -> list[int]:
        """Return the ranks of the workers with the fewest steps."""
        least = min(self._clocks.values(), default=0)
        return [worker for worker, clock in self._clocks.items() if clock == least]

    def read(self, worker: int) -> None:
        """Record that this worker has received the current parameters."""
        self._read[worker] = self.version

    def leave(self, worker: int) -> None:
        """Remove a worker that has finished, so that no other worker waits for it."""
        self._clocks.pop(worker, None)
        self._read.pop(worker, None)
