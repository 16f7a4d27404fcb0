"""Buckets: memory in which several gradients lie next to each other and are reduced as one.

``param.grad`` is a view of the bucket. Autograd gives a parameter without a gradient the tensor that backward has just
computed; that is copied to its place in the bucket while it is still in the cache, and given back at once, so the next
gradient is computed in memory that is in the cache, too. A bucket lies in shared memory where there is some: then the
ranks of a host reduce it in place, each its slice of all, and nothing is copied any more.

Whatever a gradient is, the bucket can carry it: a tensor that the user has put in place of the view, a sparse or
strided one, one of another dtype or device, one that is part of a graph (``create_graph``). Those of the last three
kinds stay ``param.grad`` and get the result copied into them; the others are replaced by the view.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from horovod.torch.bucket_plan import Gradient, offsets
from horovod.torch.shared import shared_buffer

# How many tensors share a storage. Where torch has no such function, tensors that the user made from a gradient and
# keeps over a step are not noticed; gradients themselves are.
_storage_uses: Callable[[int], int] = getattr(torch._C, "_storage_Use_Count", lambda _: 0)


class Slot:
    """What the reducer knows of one parameter."""

    __slots__ = (
        "address",
        "again",
        "before",
        "bucket",
        "group",
        "hook",
        "index",
        "late",
        "moves",
        "name",
        "parameter",
        "seen",
        "touched",
        "version",
        "view",
        "watched",
    )

    def __init__(self, parameter: torch.Tensor, name: str, index: int) -> None:
        self.parameter = parameter
        self.name = name
        self.index = index
        self.hook: Any = None
        self.seen = 0  # number of the last backward pass that made the gradient
        self.touched = False  # a backward pass of this round has made it
        self.again = False  # there are backward passes that make it more than once
        self.late = True  # so it is submitted when they are over; until it is known, too
        self.watched: torch.Tensor | None = (
            None  # the gradient as it was submitted, and its version; see submissions.py
        )
        self.version = 0
        self.before: torch.Tensor | None = None  # what was in param.grad and is not to be reduced; see transit.py
        self.group: Any = None
        self.bucket: Bucket | None = None
        self.view: Any = None  # its place in the bucket, unless the program has moved it: it is param.grad itself
        self.address = 0  # of its place
        self.moves = 0  # how often its bucket was given up

    @property
    def shape(self) -> Gradient:
        return Gradient(self.parameter.numel(), self.parameter.dtype)


class Bucket:
    """The gradients of ``members``, all of one dtype."""

    __slots__ = (
        "_dtype",
        "_memory_is_ours",
        "_storage_uses",
        "_taken_from",
        "flat",
        "job",
        "members",
        "name",
        "outgrown",
        "partly_sent",
        "sent",
        "waiting_for",
    )

    def __init__(self, name: str, members: Sequence[Slot], dtype: torch.dtype, job: Any) -> None:
        """``name``: the operation's. ``job``: in which all ranks have this bucket."""
        self.name = name
        self.members = list(members)
        self.job = job
        self.waiting_for = len(self.members)  # gradients that backward has yet to make in this step
        self.sent = False  # in this step, as a whole
        self.partly_sent = 0  # how many steps in a row some gradients of it were missing on all ranks
        self.outgrown = False  # a parameter's dtype has changed since
        self._dtype = dtype
        self._memory_is_ours = False
        self._taken_from: dict[Slot, torch.Tensor] = {}  # gradients that are no views
        self._allocate()
        for slot in self.members:
            slot.bucket = self

    def _allocate(self) -> None:
        # Of the bucket's dtype, whatever a parameter's has become: this is not decided together with the other ranks.
        starts, nbytes = offsets([Gradient(slot.parameter.numel(), self._dtype) for slot in self.members])
        self.flat = shared_buffer(nbytes).view(self._dtype)
        for slot, start in zip(self.members, starts, strict=True):
            slot.address = self.flat.data_ptr() + start
            self._place(slot)
        # Counted when nothing here has the storage but the tensors.
        self._storage_uses = _storage_uses(self.flat.untyped_storage()._cdata)

    def _place(self, slot: Slot) -> None:
        start = (slot.address - self.flat.data_ptr()) // self.flat.element_size()
        # Not view(): tensors of their own over the memory, whose changes autograd counts separately.
        view = torch.empty(0, dtype=self._dtype)
        slot.view = view.set_(self.flat.untyped_storage(), start, slot.parameter.shape)

    def _in_place(self, slot: Slot) -> bool:
        """Is the view still where it was made? ``p.grad.data = ...``, which ``Module.to`` does, too, and ``set_`` move
        it somewhere else, and later changes of it would not reach the bucket."""
        view = slot.view
        return view.data_ptr() == slot.address and view.dtype is self._dtype and view.is_contiguous()

    def take(self, slot: Slot) -> None:
        """Makes the gradient of the slot's parameter a view of the bucket, if it is none yet."""
        # The path of every gradient: no call that is not needed.
        p = slot.parameter
        grad = p.grad
        if grad is slot.view and self._in_place(slot):
            return
        assert grad is not None
        if not self._memory_is_ours:
            self._make_memory_ours()
        if not self._in_place(slot):
            self._place(slot)
        view = slot.view
        if p.dtype is not view.dtype:
            self.outgrown = True
        if grad.requires_grad or grad.dtype is not view.dtype or not grad.is_cpu:
            self._taken_from[slot] = grad.detach()
            view.copy_(grad.detach())
            return
        view.copy_(grad.to_dense() if grad.is_sparse else grad)
        p.grad = view

    def _make_memory_ours(self) -> None:
        """Once a step, before the first gradient comes: if the program has kept gradients of earlier steps, or views of
        them, leaves them the memory and goes on in new memory."""
        for slot in self.members:
            if not self._in_place(slot):
                self._place(slot)
        kept = _storage_uses(self.flat.untyped_storage()._cdata) > self._storage_uses
        for slot in self.members:
            # One reference is the slot's, one the call's; autograd may have one to a gradient that is a parameter's.
            kept = kept or (slot.parameter.grad is not slot.view and sys.getrefcount(slot.view) > 2)
        if kept:
            before = [slot.view for slot in self.members]
            self._allocate()
            for slot, old in zip(self.members, before, strict=True):
                if slot.parameter.grad is old:
                    slot.view.copy_(old)
                    slot.parameter.grad = slot.view
        self._memory_is_ours = True

    def fill(self, slot: Slot) -> None:
        """Takes the slot's gradient; a parameter that has none gets one of zeros."""
        if slot.parameter.grad is None:
            slot.parameter.grad = torch.zeros_like(slot.parameter, memory_format=torch.contiguous_format)
        self.take(slot)

    def hand_out(self, slot: Slot) -> None:
        """Gives the result to a gradient that is no view."""
        grad = self._taken_from.pop(slot, None)
        if grad is not None:
            grad.copy_(slot.view)

    def restart(self) -> None:
        self.waiting_for = len(self.members)
        self.sent = False
        self._memory_is_ours = False
        self._taken_from.clear()

    def give_up(self) -> None:
        """Sends its members back to where they were. Their gradients stay where they are."""
        for slot in self.members:
            slot.bucket = slot.view = None
            slot.moves += 1
