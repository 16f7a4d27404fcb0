"""Per-rank values that are not synchronized: random number states and accumulated gradients.

With each commit, every rank sends its random number states and similar values to all other ranks. The values therefore
survive the loss of a rank.

Optimizers accumulate gradients over several backward passes, in variables that no elastic state saves. After a failure
between these passes, ranks have made different numbers of passes, and a new rank has made none. So all ranks drop the
accumulated gradients when training resumes.
"""

import random
import sys
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class PerRank:
    """Value in an elastic state that differs between ranks. Read and set it through the attribute ``value``.

    The value must be picklable. It is neither synchronized between ranks nor written to checkpoints.
    """

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def get(self) -> Any:
        """Return a copyable and picklable form of the value."""
        return self.value

    def put(self, value: Any) -> None:
        """Restore the value from a result of ``get``. A new rank gets the value of a lost rank, if there is one."""
        self.value = value


class RandomNumbers(PerRank):
    """Random generator states of Python and, if imported, NumPy and PyTorch (CPU)."""

    def get(self) -> Any:
        states: dict[str, Any] = {"random": random.getstate()}
        if (numpy := sys.modules.get("numpy")) is not None:
            states["numpy"] = numpy.random.get_state()
        if (torch := sys.modules.get("torch")) is not None:
            states["torch"] = torch.get_rng_state().numpy()
        return states

    def put(self, value: Any) -> None:
        random.setstate(value["random"])
        if "numpy" in value and (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.set_state(value["numpy"])
        if "torch" in value and (torch := sys.modules.get("torch")) is not None:
            torch.set_rng_state(torch.from_numpy(value["torch"]))


def seats(current: Sequence[int | None], values: Mapping[int, Any]) -> list[int]:
    """Assign each rank a seat, which is a number that identifies a set of per-rank values.

    A new rank takes the lowest seat left by a lost rank, or a new seat if there is none.

    Args:
        current: Current seat of each rank, or None for a new rank.
        values: Per-rank values by seat, including those of lost ranks.
    """
    taken = {seat for seat in current if seat is not None}
    free = iter(sorted(set(values) - taken))
    following = iter(range(max([-1, *taken, *values]) + 1, sys.maxsize))
    given = []
    for seat in current:
        if seat is None:
            seat = next(free, None)
        given.append(next(following) if seat is None else seat)
    return given


class Accumulator(Protocol):
    """Interface that is implemented by optimizers that accumulate gradients over several backward passes."""

    def pending(self) -> bool:
        """Return True if there are accumulated gradients that no optimizer step has used yet."""

    def drop(self) -> None:
        """Drop the accumulated gradients, so that the next backward pass starts from zero."""


_accumulators: "weakref.WeakSet[Accumulator]" = weakref.WeakSet()


def register_accumulator(one: Accumulator) -> None:
    """Make ``accumulation_pending`` and ``drop_accumulated`` include an accumulator while it exists."""
    _accumulators.add(one)


def accumulation_pending() -> bool:
    """Return True if any accumulator has gradients that no optimizer step has used yet."""
    return any(one.pending() for one in list(_accumulators))


def drop_accumulated() -> None:
    """Drop all accumulators' accumulated gradients."""
    for one in list(_accumulators):
        one.drop()
