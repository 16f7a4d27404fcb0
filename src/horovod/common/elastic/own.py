"""Values that differ between ranks and are not synchronized: random number states and accumulated gradients.

With each commit, every rank sends values such as its random number states to all others, so that they survive its loss.

Optimizers accumulate gradients over several backward passes in variables that no state saves. A failure in the middle
of a cycle of passes leaves ranks at different passes, and a new rank has made none. So all ranks restart the cycle when
training resumes.
"""

import random
import sys
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class PerRank:
    """State attribute whose value differs between ranks; use its ``.value``.

    The value must be picklable. It is neither synchronized between ranks nor written to checkpoints.
    """

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def get(self) -> Any:
        """Return the value in a form that can be copied and sent."""
        return self.value

    def put(self, value: Any) -> None:
        """Set the value to a result of ``get``, possibly that of a lost rank."""
        self.value = value


class RandomNumbers(PerRank):
    """States of this rank's random generators: Python's, and NumPy's and PyTorch's (CPU) if they are imported."""

    def get(self) -> Any:
        told: dict[str, Any] = {"random": random.getstate()}
        if (numpy := sys.modules.get("numpy")) is not None:
            told["numpy"] = numpy.random.get_state()
        if (torch := sys.modules.get("torch")) is not None:
            told["torch"] = torch.get_rng_state().numpy()
        return told

    def put(self, value: Any) -> None:
        random.setstate(value["random"])
        if "numpy" in value and (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.set_state(value["numpy"])
        if "torch" in value and (torch := sys.modules.get("torch")) is not None:
            torch.set_rng_state(torch.from_numpy(value["torch"]))


def seats(held: Sequence[int | None], known: Mapping[int, Any]) -> list[int]:
    """Return the seat of each rank, which identifies a set of per-rank values.

    A new rank takes the lowest seat whose rank is gone. If there is none, it gets a new seat.

    Args:
        held: Seat of each rank; None for a new rank.
        known: Per-rank values by seat, including those of lost ranks.
    """
    taken = {seat for seat in held if seat is not None}
    free = iter(sorted(set(known) - taken))
    following = iter(range(max([-1, *taken, *known]) + 1, sys.maxsize))
    given = []
    for seat in held:
        if seat is None:
            seat = next(free, None)
        given.append(next(following) if seat is None else seat)
    return given


class Accumulator(Protocol):
    """Part of an optimizer that counts backward passes and accumulates their gradients."""

    def pending(self) -> bool:
        """Return True after the first and before the last pass of a cycle."""

    def drop(self) -> None:
        """Drop the accumulated gradients and restart the cycle."""


_known: "weakref.WeakSet[Accumulator]" = weakref.WeakSet()


def register_accumulator(one: Accumulator) -> None:
    """Include this accumulator in ``accumulation_pending`` and ``drop_accumulated`` while it exists."""
    _known.add(one)


def accumulation_pending() -> bool:
    """Return True if there are accumulated gradients that no optimizer step has used yet."""
    return any(one.pending() for one in list(_known))


def drop_accumulated() -> None:
    """Drop accumulated gradients and restart the cycles of all accumulators."""
    for one in list(_known):
        one.drop()
