"""Gradients that the rounds of a step have not reduced (gradients.py), and reductions that a program starts itself.

Hooks see what backward passes accumulate. Programs also create gradients that the hooks miss or see too late: they
assign the result of ``torch.autograd.grad`` or of a custom kernel, or they take a step in a hook registered before
Horovod's. The optimizer uses such a gradient like any other, so each step first looks for gradients that no round has
reduced.

A gradient may also be left over from an earlier step, in which it was reduced. It is recognized by its tensor: the one
that the reduction stored (``Slot.reduced``, or the bucket's view).

The second part has members of a distributed optimizer that programs written for earlier versions of Horovod use.
"""

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from horovod.common.exceptions import RanksDisagreeError
from horovod.torch.buckets import Slot
from horovod.torch.compression import Compression
from horovod.torch.ops import handles
from horovod.torch.ops.allreduce import allreduce_async_
from horovod.torch.submissions import Options

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


def _compression(reducer: Any) -> Any:
    return Compression.none if reducer is None else reducer.options.compression


class Begun(dict[torch.Tensor, tuple[int, Any]]):
    """Reductions started by the program itself: for each parameter, the handle and the compression context."""

    @contextlib.contextmanager
    def apart(self, reducer: Any) -> Iterator[None]:
        """Set these gradients to None within the context, so that they are not reduced twice.

        On exit the gradients hold the reduced values.
        """
        grads = {p: p.grad for p in self}
        for p in self:
            p.grad = None
        try:
            yield
        finally:
            for p, (handle, context) in self.items():
                p.grad = grads[p]
                result = handles.synchronize(handle)
                if result is not None:  # None if the program has already synchronized the handle
                    with torch.no_grad():
                        p.grad.copy_(_compression(reducer).decompress(result, context))  # type: ignore[union-attr]
            if hasattr(reducer, "coverage"):
                reducer.coverage.leave_alone(self.keys())
            self.clear()


# Members of the class of distributed optimizers; ``self`` is the optimizer. They are not in a base class, because
# programs inspect the optimizer's bases.


def _passes(self: Any) -> int:
    """Return the number of backward passes over which gradients accumulate before they are reduced."""
    passes: int = self._hvd.passes
    return passes


def _requires_update(self: Any) -> set[torch.Tensor]:
    """Return the trainable parameters."""
    return {p for p in self._parameter_names if p.requires_grad}


def _handles(self: Any) -> Begun:
    """Return the dict of operations started with ``_allreduce_grad_async``, by parameter.

    ``synchronize`` and ``step`` wait for them. Gradients of backward passes are not included: they are reduced at the
    end of the pass.
    """
    begun: Begun = self._hvd.begun
    return begun


def allreduce_grad_async(self: Any, p: torch.Tensor) -> tuple[int, Any]:
    """Start to reduce the dense ``p.grad`` with the optimizer's settings. All ranks must do so alike.

    Returns:
        tuple[int, Any]: Handle, and the context for the compressor's ``decompress``.
    """
    reducer = self._hvd.reducer
    assert p.grad is not None
    tensor, context = _compression(reducer).compress(p.grad.detach())
    name = f"{self._parameter_names[p]}.asked"
    if reducer is None:
        return allreduce_async_(tensor, name=name), context
    options: Options = reducer.options
    scale = (options.prescale, options.postscale)
    return allreduce_async_(tensor, None, name, options.op, *scale, options.process_set), context


backward_passes_per_step = property(_passes)
requires_update = property(_requires_update)
started = property(_handles)
