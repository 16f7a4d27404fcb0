"""Gradients that the rounds of a step have left out (gradients.py).

A hook sees what backward passes accumulate. Programs also make gradients where no hook of ours sees them, or see them
too late: they assign what ``torch.autograd.grad`` or a kernel of their own has computed, or take a step in a hook that
was registered before ours. The optimizer steps with such a gradient like with any other, so before a step those that
no round has reduced are looked for.

A parameter may also have a gradient that has been reduced in an earlier step and was left in place. That is told by the
tensor: the one that a reduction has left there (``Slot.reduced``, or the bucket's view) needs no other.
"""

import contextlib
from collections.abc import Collection, Iterator, Sequence

import torch

from horovod.common.exceptions import RanksDisagreeError
from horovod.torch.buckets import Slot

_NAMED = 5  # gradients in a message


class Coverage:
    """Which of ``slots``, all of an optimizer's, no round since the last step has reduced."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._missing: list[Slot] | None = None  # None: there was no round
        self._last: Sequence[int] = ()  # flags of the first round of a step
        self._missing_then: list[Slot] = []  # what that round left out

    def extend(self, slots: Sequence[Slot]) -> None:
        """Note that the last slots have come during this step."""
        self._last = ()  # of fewer slots, so it says nothing about the next round
        if self._missing is not None:
            self._missing = [*self._missing, *slots]

    def restart(self) -> None:
        """Forget the rounds so far."""
        self._missing = None

    def add(self, flags: Sequence[int]) -> None:
        """Note a round. ``flags``: of all ranks together, first those of the slots."""
        if self._missing is not None:
            self._missing = [slot for slot in self._missing if not flags[slot.index]]
            return
        if flags != self._last:  # steps are alike, as a rule
            self._last = flags
            self._missing_then = [slot for slot in self._slots if not flags[slot.index]]
        self._missing = self._missing_then

    def left_out(self) -> list[Slot]:
        """Return the slots whose parameters have a gradient that has not been reduced."""
        found = self._slots if self._missing is None else self._missing
        return [slot for slot in found if slot.parameter.grad is not None and not slot.has_reduced()]

    def leave_alone(self, parameters: Collection[torch.Tensor] | None = None) -> None:
        """Have the gradients of ``parameters``, or of all, count as reduced as long as they are the same tensors."""
        for slot in self._slots:
            if parameters is None or slot.parameter in parameters:
                slot.note_reduced()


def named(slots: Sequence[Slot]) -> str:
    """Return the names of some gradients for a message."""
    more = ", ..." if len(slots) > _NAMED else ""
    return ", ".join(repr(slot.name) for slot in slots[:_NAMED]) + more


@contextlib.contextmanager
def naming(slots: Sequence[Slot]) -> Iterator[None]:
    """Have an error of a round for what was left out of others name it: other ranks may have left out nothing."""
    try:
        yield
    except RanksDisagreeError as error:
        raise RanksDisagreeError(
            f"{error}; step() on this rank found gradients that no backward pass has made, so other ranks must have "
            f"them, too: {named(slots)}"
        ) from error
