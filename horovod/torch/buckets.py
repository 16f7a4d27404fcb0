"""Buckets: memory in which several gradients lie next to each other and are reduced as one.

``param.grad`` is a view of the bucket. Autograd gives a parameter without a gradient the tensor that backward has just
computed; that is copied to its place in the bucket, and given back. Small ones are copied all together when the last of
them has come, which takes one call; larger ones while they are still in the cache, so that the next gradient is
computed in memory that is in the cache, too. A bucket lies in shared memory where there is some: then the ranks of a
host reduce it in place, each its slice of all, and nothing is copied any more.

Gradients on a device have buckets there, in memory of PyTorch's. All are copied by one kernel when the last has come: a
device has no cache that would tell early from late. Backward may have made them on several streams.

Whatever a gradient is, the bucket can carry it: a tensor that the user has put in place of the view, a sparse or
strided one, one of another dtype or device, one that is part of a graph (``create_graph``). Those of the last three
kinds stay ``param.grad`` and get the result copied into them; the others are replaced by the view.

Every step looks at all gradients several times, so what has to be asked of each is asked in a ``map``.
"""

import contextlib
import sys
import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter, is_
from typing import Any

import torch

from horovod.torch.bucket_plan import Gradient, offsets
from horovod.torch.ops import devices
from horovod.torch.shared import shared_buffer

# How many tensors share a storage. Where torch has no such function, tensors that the user made from a gradient and
# keeps over a step are not noticed; gradients themselves are.
_storage_uses: Callable[[int], int] = getattr(torch._C, "_storage_Use_Count", lambda _: 0)

# Bytes from which on the time that a copy takes is that of the memory, not that of the call.
_AT_ONCE = 32 << 10

_grad_of = attrgetter("grad")
_version_of = attrgetter("_version")
_needs_grad = attrgetter("requires_grad")
_pointer_of = torch.Tensor.data_ptr
_is_contiguous = torch.Tensor.is_contiguous


def _copy_one_by_one(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


_copy_all: Callable[..., Any] = getattr(torch, "_foreach_copy_", _copy_one_by_one)


class Slot:
    """What the reducer knows of one parameter."""

    __slots__ = (
        "again",
        "at_once",
        "before",
        "bucket",
        "group",
        "hook",
        "index",
        "late",
        "moves",
        "name",
        "only_noted",
        "parameter",
        "place",
        "reduced",
        "seen",
        "version",
        "watched",
    )

    def __init__(self, parameter: torch.Tensor, name: str, index: int) -> None:
        self.parameter = parameter
        self.name = name
        self.index = index
        self.hook: Any = None
        self.seen = 0  # number of the last backward pass that made the gradient
        self.again = False  # there are backward passes that make it more than once
        self.late = True  # so it is submitted when they are over; until it is known, too
        # The gradient as it was submitted, outside of buckets, and its version; see submissions.py.
        self.watched: torch.Tensor | None = None
        self.version = 0
        self.before: torch.Tensor | None = None  # what was in param.grad and is not to be reduced; see transit.py
        self.reduced: Any = None  # weak reference to the last gradient that was reduced outside of a bucket
        self.group: Any = None
        self.bucket: Bucket | None = None
        self.place = 0  # in the bucket: the how many-th
        self.at_once = False  # goes to its place in the bucket when it comes
        self.only_noted = False  # is in a bucket, neither late nor at once
        self.moves = 0  # how often its bucket was given up

    def settle(self) -> None:
        """To be called where ``bucket``, ``late`` or ``at_once`` has changed."""
        self.only_noted = self.bucket is not None and not self.late and not self.at_once

    def come_again(self) -> None:
        """Note that a pass within the pass, of a re-entrant checkpoint for one, has made the gradient once more.

        Raises:
            RuntimeError: The gradient is on its way already.
        """
        if self.watched is not None or (self.bucket is not None and self.bucket.has_come(self)):
            raise RuntimeError(
                f"gradient {self.name!r} was computed a second time in one backward pass, by another one within it, "
                "while it was being reduced; with torch.utils.checkpoint give use_reentrant=False"
            )
        self.again = self.late = True
        self.settle()

    def note_reduced(self) -> None:
        """Note that the gradient has been reduced."""
        grad = self.parameter.grad
        self.reduced = None if grad is None else weakref.ref(grad)

    def has_reduced(self) -> bool:
        """Return True if the gradient is a tensor that a reduction has left there."""
        grad = self.parameter.grad
        return grad is self.view or (self.reduced is not None and grad is self.reduced())

    @property
    def shape(self) -> Gradient:
        return Gradient(self.parameter.numel(), self.parameter.dtype, self.parameter.device)

    @property
    def view(self) -> Any:
        """Its place in the bucket, unless the program has moved it: it is param.grad itself. None without a bucket."""
        return None if self.bucket is None else self.bucket.views[self.place]


class Bucket:
    """The gradients of ``members``, all of one dtype and device."""

    __slots__ = (
        "_addresses",
        "_device",
        "_dtype",
        "_memory_is_ours",
        "_parameters",
        "_storage",
        "_storage_uses",
        "_taken_from",
        "_view_uses",
        "came",
        "changed",
        "flat",
        "gathered",
        "job",
        "left_alone",
        "members",
        "name",
        "outgrown",
        "partly_sent",
        "sent",
        "streams",
        "versions",
        "views",
        "waiting_for",
    )

    def __init__(self, name: str, members: Sequence[Slot], kind: Gradient, job: Any) -> None:
        """``name``: the operation's. ``kind``: one with the members' dtype and device. ``job``: in which all ranks have
        this bucket."""
        self.name = name
        self.members = list(members)
        self.job = job
        self.partly_sent = 0  # how many steps in a row some gradients of it were missing on all ranks
        self.outgrown = False  # a parameter's dtype or device has changed since
        self._dtype = kind.dtype
        self._device = kind.device
        # On a device: those on which gradients have come.
        self.streams = None if self._device.type == "cpu" else devices.Streams(self._device)
        self._parameters = [slot.parameter for slot in self.members]
        self._taken_from: dict[Slot, torch.Tensor] = {}  # gradients that are no views
        self._allocate()
        for place, slot in enumerate(self.members):
            slot.bucket = self
            slot.place = place
            slot.at_once = slot.shape.nbytes > _AT_ONCE and self.streams is None
            slot.settle()
        self.restart()

    def restart(self) -> None:
        """Gets ready for the next step."""
        self.waiting_for = len(self.members)  # gradients that backward has yet to make
        self.gathered = False  # are all gradients views, and known not to have been missing?
        self.sent = False  # as a whole
        self.left_alone = False  # since it was gathered
        self._memory_is_ours = False
        self._taken_from.clear()
        if self.streams is not None:
            self.streams.forget()
        # The gradients as they came, later as they were submitted, with their versions: nobody is to change them.
        self.came: list[Any] = [None] * len(self.members)
        self.versions = [0] * len(self.members)
        self.changed: Slot | None = None  # one whose gradient was not left alone

    def _allocate(self) -> None:
        # Of the bucket's dtype, whatever a parameter's has become: this is not decided together with the other ranks.
        starts, nbytes = offsets([Gradient(p.numel(), self._dtype, self._device) for p in self._parameters])
        if self.streams is None:
            self.flat = shared_buffer(nbytes).view(self._dtype)
        else:
            self.flat = devices.zeros(nbytes // self._dtype.itemsize, self._dtype, self._device)
        self._addresses = [self.flat.data_ptr() + start for start in starts]
        self.views: list[torch.Tensor] = [self._view(place) for place in range(len(starts))]
        # Counted when nothing here has the storage but the tensors, and nothing has these but the list.
        self._storage = self.flat.untyped_storage()._cdata
        self._storage_uses = _storage_uses(self._storage)
        self._view_uses = max(map(sys.getrefcount, self.views))

    def _view(self, place: int) -> torch.Tensor:
        start = (self._addresses[place] - self.flat.data_ptr()) // self.flat.element_size()
        # Not view(): tensors of their own over the memory, whose changes autograd counts separately.
        view = self.flat.new_empty(0)
        return view.set_(self.flat.untyped_storage(), start, self._parameters[place].shape)

    # Are the views still where they were made? ``p.grad.data = ...``, which ``Module.to`` does, too, ``set_`` and
    # ``t_`` make something else of them, and later changes would not reach the bucket.
    def _in_place(self, place: int) -> bool:
        view = self.views[place]
        return view.data_ptr() == self._addresses[place] and view.dtype is self._dtype and view.is_contiguous()

    def _all_in_place(self) -> bool:
        return list(map(_pointer_of, self.views)) == self._addresses and all(map(_is_contiguous, self.views))

    def has_come(self, slot: Slot) -> bool:
        """Is the gradient noted in ``came``?"""
        return self.came[slot.place] is not None

    def note(self, slot: Slot) -> bool:
        """The slot's gradient has come. Was it the last? (hooks.py does the same without a call.)"""
        place = slot.place
        self.came[place] = grad = slot.parameter.grad
        self.versions[place] = grad._version  # type: ignore[union-attr]
        if self.streams is not None:
            self.streams.note()
        self.waiting_for -= 1
        return self.waiting_for == 0

    def gather(self, left_alone: bool) -> None:
        """Makes all gradients views of the bucket, if they are none yet; a parameter that has none gets one of zeros.
        ``left_alone``: nobody changes them from now on until they are reduced."""
        self.look_for_change()
        with self.streams or contextlib.nullcontext():
            whole = self.changed is None and self.waiting_for == 0 and self._take_all()
            if self.changed is not None or self.waiting_for:
                for slot in self.members:
                    self.fill(slot)
        self.came = self.views.copy() if whole else list(map(_grad_of, self._parameters))
        self.left_alone = left_alone
        if not left_alone:
            self.versions = list(map(_version_of, self.came))
        self.gathered = True

    def look_for_change(self) -> None:
        """Sets ``changed`` if a gradient is no more what it was when it came or was gathered."""
        if self.left_alone:
            return
        came, versions = self.came, self.versions
        if (
            self.waiting_for == 0
            and all(map(is_, map(_grad_of, self._parameters), came))
            and list(map(_version_of, came)) == versions
        ):
            return
        for slot, grad, version in zip(self.members, came, versions, strict=True):
            if grad is not None and (slot.parameter.grad is not grad or grad._version != version):
                self.changed = self.changed or slot

    def _take_all(self) -> bool:
        """Takes all gradients, which have come. Are all views now?"""
        if all(map(is_, self.came, self.views)) and self._all_in_place():
            return True
        if not self._memory_is_ours:
            self._make_memory_ours()
        elif not self._all_in_place():
            self._put_in_place()
        grads = self.came
        if not any(map(_needs_grad, grads)):
            try:
                with torch.inference_mode():  # autograd takes a sixth of a copy; versions are counted here, too
                    _copy_all(self.views, grads)
                for p, view in zip(self._parameters, self.views, strict=True):
                    p.grad = view
                return True
            except RuntimeError:  # sparse ones, or of another dtype or device, as their parameters are now
                pass
        for slot in self.members:
            self.take(slot)
        return False

    def take(self, slot: Slot) -> None:
        """Makes the gradient of the slot's parameter a view of the bucket, if it is none yet."""
        p = slot.parameter
        grad = p.grad
        if grad is slot.view and self._in_place(slot.place):
            return
        assert grad is not None
        if not self._memory_is_ours:
            self._make_memory_ours()
        if not self._in_place(slot.place):
            self.views[slot.place] = self._view(slot.place)
        view = slot.view
        if p.dtype is not view.dtype or p.device != view.device:
            self.outgrown = True
        if grad.requires_grad or grad.dtype is not view.dtype or grad.device != view.device:
            self._taken_from[slot] = grad.detach()
            view.copy_(grad.detach())
            return
        view.copy_(grad.to_dense() if grad.is_sparse else grad)
        p.grad = view

    def _make_memory_ours(self) -> None:
        """Once a step, before the first gradient is copied: if the program has kept gradients of earlier steps, or
        views of them, leaves them the memory and goes on in new memory."""
        self._memory_is_ours = True
        if not self._all_in_place():
            self._put_in_place()
        kept = _storage_uses(self._storage) > self._storage_uses
        if not kept and max(map(sys.getrefcount, self.views)) > self._view_uses:
            # Autograd may have a reference to a gradient that is a parameter's.
            loose = [view for p, view in zip(self._parameters, self.views, strict=True) if p.grad is not view]
            kept = bool(loose) and max(map(sys.getrefcount, loose)) > self._view_uses + 1  # the list's
        if not kept:
            return
        before = self.views
        self._allocate()
        for place, (p, old) in enumerate(zip(self._parameters, before, strict=True)):
            if p.grad is old:
                view = self.views[place]
                view.copy_(old)
                p.grad = view
                if self.came[place] is old and self.versions[place] == old._version:
                    self.came[place], self.versions[place] = view, view._version

    def _put_in_place(self) -> None:
        for place in range(len(self.members)):
            if not self._in_place(place):
                self.views[place] = self._view(place)

    def fill(self, slot: Slot) -> None:
        """Takes the slot's gradient; a parameter that has none gets one of zeros."""
        if slot.parameter.grad is None:
            slot.parameter.grad = torch.zeros_like(slot.parameter, memory_format=torch.contiguous_format)
        self.take(slot)

    def hand_out(self, slot: Slot | None) -> None:
        """Gives the result to the slot's gradient if that is no view; without a slot to all."""
        for of in [slot] if slot is not None else list(self._taken_from):
            grad = self._taken_from.pop(of, None)
            if grad is not None:
                grad.copy_(of.view)
                of.note_reduced()

    def give_up(self) -> None:
        """Sends its members back to where they were. Their gradients stay where they are."""
        for slot in self.members:
            if slot.has_reduced():
                slot.note_reduced()
            slot.bucket = None
            slot.at_once = False
            slot.settle()
            slot.moves += 1
