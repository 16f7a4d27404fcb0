"""The parts of the strategies that need no communication.

Contains update rules for flat NumPy or PyTorch arrays, parameter partitioning, gossip graphs, staleness tracking for
parameter servers, and ``Vector``, whose subclasses in ``arrays`` and ``tensors`` access the parameters.

Sources: local SGD (Stich 2019), post-local SGD (Lin et al. 2020), DiLoCo (Douillard et al. 2023), Streaming DiLoCo
(Douillard et al. 2025), EASGD (Zhang et al. 2015), stochastic gradient push (Assran et al. 2019).
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple


def slices(total: int, parts: int) -> list[tuple[int, int]]:
    """Split ``total`` elements into ``parts`` ranges (start, stop) whose sizes differ by at most 1."""
    bounds = [total * i // parts for i in range(parts + 1)]
    return list(itertools.pairwise(bounds))


class Segment(NamedTuple):
    """Part of one array that lies in a slice of the concatenation of all arrays.

    The part consists of elements ``start`` to ``stop`` of array ``index``. It begins at ``offset`` within the slice.
    """

    index: int
    start: int
    stop: int
    offset: int


def segments(sizes: Sequence[int], start: int, stop: int) -> list[Segment]:
    """Return the parts of arrays that elements ``start`` to ``stop`` of their concatenation cover, in order."""
    found = []
    begin = 0
    for index, size in enumerate(sizes):
        low, high = max(start, begin), min(stop, begin + size)
        if low < high:
            found.append(Segment(index, low - begin, high - begin, low - start))
        begin += size
    return found


@dataclass(frozen=True)
class OuterSGD:
    """Outer optimizer, which applies the average of the ranks' changes to the shared parameters once per round.

    With ``lr=1`` and ``momentum=0``, the result is the average of the ranks' parameters.

    Args:
        lr (float): Learning rate, above 0. Default: 0.7.
        momentum (float): Momentum, at least 0 and below 1. Default: 0.9.
        nesterov (bool): True for Nesterov momentum, as defined in PyTorch. Default: True.

    Raises:
        ValueError: If ``lr`` or ``momentum`` is out of range.
    """

    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ValueError(f"OuterSGD: lr must be above 0, got {self.lr!r}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"OuterSGD: momentum must be at least 0 and below 1, got {self.momentum!r}")

    def update(self, shared: Any, change: Any, velocity: Any) -> None:
        """Update ``shared`` and ``velocity`` in place.

        Args:
            shared: Shared parameters at the beginning of the round.
            change: Average over the ranks of ``shared`` minus the rank's parameters.
            velocity: Momentum buffer, initially zeros, or None if ``momentum`` is 0.
        """
        if self.momentum == 0:
            shared -= self.lr * change
            return
        velocity *= self.momentum
        velocity += change
        shared -= self.lr * (change + self.momentum * velocity if self.nesterov else velocity)


AVERAGING = OuterSGD(lr=1.0, momentum=0.0, nesterov=False)
"""Outer optimizer of local SGD, which averages the parameters."""


@dataclass(frozen=True)
class Schedule:
    """Schedule that determines which fragments of the parameters are exchanged after each step.

    The schedule depends only on the number of steps, which is equal on all ranks. So all ranks exchange the same
    fragments in the same order.

    Args:
        every: Number of steps between two exchanges of the same fragment. Must be a multiple of ``fragments``.
        fragments: Number of fragments, which are exchanged in turn at equal intervals.
        overlap: Number of steps between sending a fragment and using the result. Must be less than
            ``every / fragments``.
        synchronous_steps: Number of initial steps after which all fragments are exchanged.

    Raises:
        ValueError: If an argument is out of range.
    """

    every: int
    fragments: int = 1
    overlap: int = 0
    synchronous_steps: int = 0

    def __post_init__(self) -> None:
        check_count("every", self.every, 1)
        check_count("fragments", self.fragments, 1)
        check_count("overlap", self.overlap, 0)
        check_count("synchronous_steps", self.synchronous_steps, 0)
        if self.every % self.fragments:
            raise ValueError(f"every must be a multiple of fragments ({self.fragments}), got {self.every}")
        if self.overlap >= self.every // self.fragments:
            raise ValueError(
                f"overlap must be below every / fragments = {self.every // self.fragments} steps, got {self.overlap}"
            )

    def due(self, step: int) -> list[int]:
        """Return the indices of the fragments that are exchanged after ``step`` steps, in order."""
        if step <= self.synchronous_steps:
            return list(range(self.fragments))
        turn, rest = divmod(step - self.synchronous_steps, self.every // self.fragments)
        return [] if rest else [(turn - 1) % self.fragments]

    def begin_of_round(self, step: int) -> int:
        """Return the number of steps completed before the round that contains ``step``."""
        return step - max(0, step - self.synchronous_steps) % self.every

    def ranges(self, total: int) -> list[tuple[int, int]]:
        """Return (start, stop) of each fragment of a vector of ``total`` elements."""
        return slices(total, self.fragments)


def check_count(name: str, value: Any, least: int) -> int:
    """Check that ``value`` is an integer and at least ``least``, and return it. Raises ValueError otherwise."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return int(value)


def blend(shared: Any, local: Any, share: float) -> Any:
    """Return ``share * local + (1 - share) * shared``."""
    return shared if share == 0 else shared + share * (local - shared)


def elastic_move(local: Any, center: Any, rate: float) -> Any:
    """Return the change that elastic averaging subtracts from ``local`` and adds to ``center``.

    Since both use the same amount, the sum of the center and all workers' parameters is preserved.
    """
    return rate * (local - center)


def pushed(value: Any, receivers: int) -> Any:
    """Return the fraction of a push-sum value or weight that a rank keeps. Each receiver gets the same fraction.

    The fractions are equal and add up to 1, so the sums of values and weights over all ranks are preserved.
    """
    return value * (1.0 / (1 + receivers))


# The functions below are the communication graphs of gossip averaging. A graph determines which ranks a rank sends to
# in a round.

Targets = list[list[int]]
"""List of the ranks to which each rank sends."""

Graph = Callable[[int, int], Sequence[Sequence[int]]]
"""Function of the number of ranks and the number of the round. Its ``Targets`` must be the same on all ranks."""


def exponential(size: int, number: int) -> Targets:
    """Send to the rank at distance 1, 2, 4, ..., one distance per round.

    If ``size`` is a power of two, log2(size) rounds compute the exact average.

    Returns:
        Targets of the round.
    """
    hops = max(1, (size - 1).bit_length())
    distance = 1 << (number % hops)
    return [[(rank + distance) % size] if size > 1 else [] for rank in range(size)]


def ring(size: int, number: int) -> Targets:
    """Send to the next rank in even rounds, and to the previous rank in odd rounds."""
    step = -1 if number % 2 else 1
    return [[(rank + step) % size] if size > 1 else [] for rank in range(size)]


def pairs(size: int, number: int) -> Targets:
    """Exchange with one partner per round. Every pair of ranks meets once in size - 1 rounds.

    An odd ``size`` takes ``size`` rounds, and each rank sits out one of them. The circle method of
    round-robin tournaments forms the pairs.

    Returns:
        Targets of the round.
    """
    places = size + size % 2  # if the size is odd, add a dummy rank; its partner in a round has nothing to do
    if size < 2:
        return [[] for _ in range(size)]
    turn = number % (places - 1)
    targets: Targets = [[] for _ in range(size)]
    for rank in range(size):
        if rank == places - 1:
            partner = (turn * (places // 2)) % (places - 1)
        else:
            partner = (turn - rank) % (places - 1)
            if partner == rank:
                partner = places - 1
        if partner < size:
            targets[rank] = [partner]
    return targets


GRAPHS: dict[str, Graph] = {"exponential": exponential, "ring": ring, "pairs": pairs}


def check_targets(targets: Sequence[Sequence[int]], size: int, push_sum: bool) -> Targets:
    """Check the targets of one round.

    Args:
        targets: Targets returned by a graph.
        size: Number of ranks.
        push_sum: False if every rank must receive the same total weight as it sends.

    Returns:
        The targets as lists.

    Raises:
        ValueError: If the targets are invalid for this number of ranks, or require push-sum.
    """
    found = [list(one) for one in targets]
    if len(found) != size or any(
        len(set(one)) < len(one) or rank in one or not set(one) <= set(range(size)) for rank, one in enumerate(found)
    ):
        raise ValueError(f"graph must give each of {size} ranks a list of distinct other ranks, got {found}")
    if not push_sum:
        weights = [Fraction(1, 1 + len(one)) for one in found]
        for rank, kept in enumerate(list(weights)):
            for target in found[rank]:
                weights[target] += kept
        if any(weight != 1 for weight in weights):
            raise ValueError(
                f"push_sum must be True for this graph: ranks receive the total weights {list(map(str, weights))} "
                "instead of 1 each, so plain mixing would not approach the average"
            )
    return found


# The class below tracks the workers' progress and the staleness of their parameters, for a parameter server.


class Progress:
    """Tracks the workers' step counts and the version of the parameters, with bounded staleness (Ho et al. 2013).

    Args:
        workers: Ranks of the workers.
        staleness: Maximum number of steps by which a worker can be ahead of the slowest worker, or None for no limit.

    Attributes:
        version: Number of updates of the parameters so far.
        histogram: Number of updates by staleness. The staleness of an update is the number of other updates after the
            worker received the parameters.
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
        """Record an update of the parameters that used one gradient from each of the given workers."""
        for worker in workers:
            self.histogram[self.version - self._read.get(worker, self.version)] += 1
            if worker in self._clocks:
                self._clocks[worker] += 1
        self.version += 1

    def may_continue(self, worker: int) -> bool:
        """Return True unless this worker is too far ahead of the slowest worker."""
        return self.bound is None or self._clocks[worker] - min(self._clocks.values()) <= self.bound

    def slowest(self) -> list[int]:
        """Return the ranks of the workers that have completed the fewest steps."""
        least = min(self._clocks.values(), default=0)
        return [worker for worker, clock in self._clocks.items() if clock == least]

    def read(self, worker: int) -> None:
        """Record that this worker has received the current parameters."""
        self._read[worker] = self.version

    def leave(self, worker: int) -> None:
        """Remove a worker that has finished, so that no other worker waits for it."""
        self._clocks.pop(worker, None)
        self._read.pop(worker, None)


class Vector:
    """View of the trained arrays as one flat vector, with the array operations that strategies use.

    Args:
        flats: The arrays as one-dimensional views of their memory.

    Attributes:
        hvd: The frontend's module, such as ``horovod.torch``.
        sizes: Number of elements of each array.
        total: Number of elements of the vector.
        dtype: Name of the vector's dtype: "float64" if an array has this dtype, otherwise "float32".
    """

    hvd: Any
    dtype: str

    def __init__(self, flats: Sequence[Any]) -> None:
        self.flats = list(flats)
        self.sizes = [len(flat) for flat in self.flats]
        self.total = sum(self.sizes)

    def read(self, start: int = 0, stop: int | None = None) -> Any:
        """Return a copy of the elements from ``start`` to ``stop``."""
        stop = self.total if stop is None else stop
        return self.gather(self.flats, start, stop)

    def gather(self, flats: Sequence[Any], start: int, stop: int) -> Any:
        """Return elements ``start`` to ``stop`` of the concatenated ``flats``. None stands for an array of zeros."""
        copy = self.zeros(stop - start)
        for index, low, high, offset in segments(self.sizes, start, stop):
            if (flat := flats[index]) is not None:
                copy[offset : offset + high - low] = flat[low:high]
        return copy

    def write(self, values: Any, start: int = 0) -> None:
        """Write ``values`` to the elements that begin at ``start``."""
        for index, low, high, offset in segments(self.sizes, start, start + len(values)):
            self.flats[index][low:high] = values[offset : offset + high - low]

    # The methods below depend on the array library.

    def zeros(self, size: int) -> Any:
        """Return a new vector of zeros."""
        raise NotImplementedError

    def half(self, values: Any) -> Any:
        """Convert the values to float16."""
        raise NotImplementedError

    def full(self, values: Any) -> Any:
        """Convert the values to the vector's dtype."""
        raise NotImplementedError

    def rows(self, values: Any, count: int) -> Any:
        """Return a new array of ``count`` rows, each a copy of ``values``."""
        raise NotImplementedError

    def message(self, header: Sequence[float], values: Any) -> Any:
        """Encode a message as a byte array: ``header`` as float64, followed by ``values``."""
        raise NotImplementedError

    def empty_message(self, header: int, size: int, half: bool) -> Any:
        """Allocate a message of ``header`` header numbers and ``size`` values.

        Use float16 for the values if ``half`` is True.
        """
        raise NotImplementedError

    def parse(self, message: Any, header: int, half: bool) -> tuple[list[float], Any]:
        """Decode a message into its header numbers and a copy of its values in the vector's dtype."""
        raise NotImplementedError
