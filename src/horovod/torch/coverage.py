"""Detection of gradients that the rounds of a step have not reduced (gradients.py).

Hooks see what backward passes accumulate. Programs also create gradients that the hooks miss or see too late: they
assign the result of ``torch.autograd.grad`` or of a custom kernel, or they take a step in a hook registered before
Horovod's. The optimizer uses such a gradient like any other, so each step first looks for gradients that no round has
reduced.

A gradient may also be left over from an earlier step, in which it was reduced. It is recognized by its tensor: the one
that the reduction stored (``Slot.reduced``, or the bucket's view).
"""

import contextlib
from collections.abc import Collection, Iterator, Sequence

import torch

from horovod.common.exceptions import RanksDisagreeError
from horovod.torch.buckets import Slot

_NAMED = 5  # maximum number of gradients named in a message


class Coverage:
    """Record of an optimizer's gradients that no round since the last step has reduced."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        # Slots that no round has reduced; None if no round has taken place.
        self._missing: list[Slot] | None = None
        # Combined flags of the first round of a step.
        self._last: Sequence[int] = ()
        # Slots that this first round has not reduced.
        self._missing_then: list[Slot] = []

    def extend(self, slots: Sequence[Slot]) -> None:
        """Add slots that were created during this step, and are the last ones in the list."""
        self._last = ()  # the cached flags cover fewer slots, so they cannot match the next round
        if self._missing is not None:
            self._missing = [*self._missing, *slots]

    def restart(self) -> None:
        """Forget the rounds so far."""
        self._missing = None

    def add(self, flags: Sequence[int]) -> None:
        """Record a round. ``flags`` are the combined flags of all ranks, those of the slots first."""
        if self._missing is not None:
            self._missing = [slot for slot in self._missing if not flags[slot.index]]
            return
        if flags != self._last:  # steps usually have the same flags
            self._last = flags
            self._missing_then = [slot for slot in self._slots if not flags[slot.index]]
        self._missing = self._missing_then

    def left_out(self) -> list[Slot]:
        """Return the slots whose parameters have a gradient that has not been reduced."""
        found = self._slots if self._missing is None else self._missing
        return [slot for slot in found if slot.parameter.grad is not None and not slot.has_reduced()]

    def leave_alone(self, parameters: Collection[torch.Tensor] | None = None) -> None:
        """Treat the gradients of ``parameters``, or of all, as reduced while they remain the same tensors."""
        for slot in self._slots:
            if parameters is None or slot.parameter in parameters:
                slot.note_reduced()


def named(slots: Sequence[Slot]) -> str:
    """Return the names of some gradients for a message."""
    more = ", ..." if len(slots) > _NAMED else ""
    return ", ".join(repr(slot.name) for slot in slots[:_NAMED]) + more


@contextlib.contextmanager
def naming(slots: Sequence[Slot]) -> Iterator[None]:
    """Add the names of ``slots`` to an error that their round raises.

    Other ranks may have left out no gradient, and therefore do not take part in this round.
    """
    try:
        yield
    except RanksDisagreeError as error:
        raise RanksDisagreeError(
            f"{error}; step() on this rank found gradients that no backward pass has produced, so all ranks must have "
            f"them: {named(slots)}"
        ) from error
