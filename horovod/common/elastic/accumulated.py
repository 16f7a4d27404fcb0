"""Gradients that optimizers accumulate over several backward passes, in variables that no state keeps.

A failure that cuts a cycle of passes short leaves ranks at different passes, and a new rank has made none. So all ranks
begin a cycle anew when training resumes.
"""

import weakref
from typing import Protocol


class Accumulator(Protocol):
    """Counts backward passes and sums up their gradients."""

    def pending(self) -> bool:
        """Return True between the first and the last pass of a cycle."""

    def drop(self) -> None:
        """Begin a cycle anew."""


_known: "weakref.WeakSet[Accumulator]" = weakref.WeakSet()


def register(one: Accumulator) -> None:
    """Let ``pending`` and ``drop`` include this accumulator while it exists."""
    _known.add(one)


def pending() -> bool:
    """Return True if gradients of passes are held whose step is to come."""
    return any(one.pending() for one in list(_known))


def drop() -> None:
    """Drop the gradients of unfinished cycles."""
    for one in list(_known):
        one.drop()
