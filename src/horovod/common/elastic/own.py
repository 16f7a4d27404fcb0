"""Values that differ between ranks, such as random number states, and survive the loss of a rank.

With each commit all ranks exchange these values, and a new worker continues with those of a lost one.
"""

import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any


class PerRank:
    """State attribute whose value differs between ranks: ``PerRank(value)``, read and changed as ``.value``.

    The value must be picklable. It is neither synchronized between ranks nor written to checkpoints.
    """

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def get(self) -> Any:
        """Return the value in the form that is copied and sent."""
        return self.value

    def put(self, value: Any) -> None:
        """Set the value to a result of ``get``, possibly that of a lost rank."""
        self.value = value


class RandomNumbers(PerRank):
    """States of this rank's random number generators: Python's, and if loaded NumPy's and PyTorch's (CPU)."""

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
    """Return the seats of all ranks. Pure.

    A seat identifies a set of per-rank values. A new rank takes the first seat of a rank that is gone, or else a new
    one.

    Args:
        held: Seat of each rank; None for a new rank.
        known: Seats for which values are known.
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
