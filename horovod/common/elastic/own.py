"""What belongs to one rank alone, as its random numbers do, and is to outlive it: with each commit all ranks tell one
another theirs, and a new worker goes on with what a lost one had.
"""

import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any


class PerRank:
    """An attribute of a state whose value is each rank's own: ``PerRank(value)``, read and changed as ``.value``, which
    can be pickled. It is neither made equal on all ranks nor written to checkpoints."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def get(self) -> Any:
        """The value as it is copied and sent."""
        return self.value

    def put(self, value: Any) -> None:
        """What ``get`` gave, perhaps on a rank that was lost."""
        self.value = value


class RandomNumbers(PerRank):
    """Where this rank's generators of random numbers are: Python's, and those of NumPy and PyTorch (on the CPU) if
    they are loaded."""

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
    """The seats of all ranks, given those that they hold (None: a new rank holds none) and those that something is
    known of: who is new takes the seat of one who is gone, the first one first, or a new one. Pure."""
    taken = {seat for seat in held if seat is not None}
    free = iter(sorted(set(known) - taken))
    following = iter(range(max([-1, *taken, *known]) + 1, sys.maxsize))
    given = []
    for seat in held:
        if seat is None:
            seat = next(free, None)
        given.append(next(following) if seat is None else seat)
    return given
