"""Detection of gradients that no round has reduced.

Hooks see the gradients that backward passes accumulate. A program can also create gradients that hooks miss or see too
late: it assigns the result of ``torch.autograd.grad`` or of a custom kernel, or it calls ``step()`` in a hook
registered before Horovod's. The optimizer uses such a gradient like any other. Each step therefore first looks for
gradients that no round (gradients.py) has reduced.

A gradient that was reduced in an earlier step can remain. It is recognized by identity: it is still the tensor that the
reduction stored (``Slot.reduced``, or the bucket's view).
"""

import contextlib
from collections.abc import Collection, Iterator, Sequence

import torch

from horovod.common.exceptions import RanksDisagreeError
from horovod.torch.reducer.buckets import Slot

# Maximum number of gradients named in a message.
_NAMED = 5


class Coverage:
    """Record of the gradients of one optimizer that no reduction round since the last step has included."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        # Parameters whose gradients have not been reduced by any round of this step, or None before the step's first
        # round.
        self._missing: list[Slot] | None = None
        # Flags of all parameters in the first round of the previous step, combined over the ranks.
        self._last: Sequence[int] = ()
        # Parameters whose flag in `_last` is 0. A round with these flags does not reduce their gradients.
        self._last_missing: list[Slot] = []

    def extend(self, slots: Sequence[Slot]) -> None:
        """Add parameters that were added to the optimizer during this step."""
        # Invalidate the cache, because its flags do not include the new parameters.
        self._last = ()
        if self._missing is not None:
            self._missing = [*self._missing, *slots]

    def restart(self) -> None:
        """Forget which gradients were reduced, because the step has ended."""
        self._missing = None

    def add(self, flags: Sequence[int]) -> None:
        """Record which gradients a reduction round has reduced.

        ``flags`` are the combined flags of all ranks, which begin with one flag per parameter.
        """
        if self._missing is not None:
            self._missing = [slot for slot in self._missing if not flags[slot.index]]
            return
        # Compare flags first, because they rarely differ from those of the previous step.
        if flags != self._last:
            self._last = flags
            self._last_missing = [slot for slot in self._slots if not flags[slot.index]]
        self._missing = self._last_missing

    def left_out(self) -> list[Slot]:
        """Return the parameters that have a gradient that was not reduced by any round."""
        candidates = self._slots if self._missing is None else self._missing
        return [slot for slot in candidates if slot.parameter.grad is not None and not slot.has_reduced()]

    def mark_reduced(self, parameters: Collection[torch.Tensor] | None = None) -> None:
        """Mark the current gradients of ``parameters``, or of all parameters if it is None, as reduced."""
        for slot in self._slots:
            if parameters is None or slot.parameter in parameters:
                slot.note_reduced()


def names_of(slots: Sequence[Slot]) -> str:
    """Return the names of the first few gradients, for use in a message."""
    more = ", ..." if len(slots) > _NAMED else ""
    return ", ".join(repr(slot.name) for slot in slots[:_NAMED]) + more


@contextlib.contextmanager
def naming(slots: Sequence[Slot]) -> Iterator[None]:
    """Return a context manager that adds the names of the parameters ``slots`` to a RanksDisagreeError.

    Raises:
        RanksDisagreeError: If only some ranks have gradients that no reduction round has included. These ranks then
            start a reduction in which the other ranks do not take part.
    """
    try:
        yield
    except RanksDisagreeError as error:
        raise RanksDisagreeError(
            f"{error}; step() on this rank found gradients that no backward pass has produced, so all ranks must have "
            f"them: {names_of(slots)}"
        ) from error
