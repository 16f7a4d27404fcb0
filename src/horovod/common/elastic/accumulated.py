"""Gradients that optimizers accumulate over several backward passes in variables that no state saves.

A failure in the middle of a cycle of passes leaves ranks at different passes, and a new rank has made none. So all
ranks restart the cycle when training resumes.
"""

import weakref
from typing import Protocol


class Accumulator(Protocol):
    """Optimizer part that counts backward passes and sums their gradients."""

    def pending(self) -> bool:
        """Return True between the first and the last pass of a cycle."""

    def drop(self) -> None:
        """Drop the accumulated gradients and restart the cycle."""


_known: "weakref.WeakSet[Accumulator]" = weakref.WeakSet()


def register(one: Accumulator) -> None:
    """Let ``pending`` and ``drop`` include this accumulator while it exists."""
    _known.add(one)


def pending() -> bool:
    """Return True if gradients have been accumulated whose optimizer step is still to come."""
    return any(one.pending() for one in list(_known))


def drop() -> None:
    """Drop the gradients of unfinished cycles."""
    for one in list(_known):
        one.drop()
