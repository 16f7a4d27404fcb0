"""Buckets: groups of gradients that are adjacent in memory and are reduced as one tensor.

``param.grad`` is a view of the bucket. If a parameter has no gradient, autograd stores the tensor that backward has
computed, which is then copied to the bucket and released. Small gradients are copied together, in one call, when the
last one has arrived. Larger ones are copied as soon as they arrive, while they are in the cache. Their memory is then
reused for the next gradient while it is still cached. A bucket is in shared memory where possible. The ranks of a host
then reduce it in place without further copies; each rank reduces one slice.

Buckets of gradients on a device are in device memory allocated by PyTorch. One kernel copies all gradients when the
last one has arrived, because copying early gains nothing there. Backward may have produced the gradients on several
streams.

A bucket accepts every kind of gradient, including tensors that the program assigned in place of the view, and sparse or
strided ones: they are replaced by the view. A gradient with another dtype, on another device, or in a graph
(``create_graph``) remains ``param.grad``, and the result is copied to it.

Every step checks all gradients several times, so these checks use ``map`` to stay fast.
"""

import contextlib
import sys
import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter, is_
from typing import Any

import torch

from horovod._core import Arrivals, GradientHook, take_gradients
from horovod.torch.ops import devices
from horovod.torch.ops.tensors import shared_buffer
from horovod.torch.reducer.agreement import Gradient, offsets

# Function that returns a storage's reference count. PyTorch versions without it cannot detect that the program keeps
# views of a gradient across steps.
_storage_uses: Callable[[int], int] = getattr(torch._C, "_storage_Use_Count", lambda _: 0)

# Size in bytes above which a gradient is copied as soon as it arrives. Copying smaller gradients one by one costs too
# much.
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

# Table of C functions that describe a tensor's memory, and function that marks tensors as modified. None before
# PyTorch 2.10.
_exchange: Any = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
_mark_modified: Any = getattr(torch.autograd.graph, "increment_version", None)


class Slot(GradientHook):
    """State of one parameter in an optimizer's reducer."""

    __slots__ = (
        "accumulated",
        "group",
        "hook",
        "index",
        "moves",
        "name",
        "parameter",
        "reduced",
        "repeated",
        "version",
        "watched",
    )

    def __init__(self, parameter: torch.Tensor, name: str, index: int) -> None:
        super().__init__()
        self.parameter = parameter
        self.name = name
        self.index = index
        self.hook: Any = None
        # True if a single backward pass has produced the gradient more than once.
        self.repeated = False
        # Gradient that was submitted outside of a bucket, and its version counter at that time; see submissions.py.
        self.watched: torch.Tensor | None = None
        self.version = 0
        # Previous gradient, which must not be reduced again and is therefore kept separately; see rounds.py.
        self.accumulated: torch.Tensor | None = None
        # Weak reference to the latest gradient that was reduced outside of a bucket.
        self.reduced: Any = None
        self.group: Any = None
        # Number of times that a bucket with this gradient was broken up.
        self.moves = 0

    def note_repeated(self) -> None:
        """Record that a nested backward pass, such as that of a reentrant checkpoint, has produced the gradient again.

        Raises:
            RuntimeError: If the gradient is already in flight.
        """
        if self.watched is not None or (self.bucket is not None and self.bucket.arrived[self.place] is not None):
            raise RuntimeError(
                f"gradient {self.name!r} was computed a second time in one backward pass, by a nested one, while it "
                "was being reduced; with torch.utils.checkpoint pass use_reentrant=False"
            )
        self.repeated = self.deferred = True

    def note_reduced(self) -> None:
        """Record that the gradient has been reduced."""
        grad = self.parameter.grad
        self.reduced = None if grad is None else weakref.ref(grad)

    def has_reduced(self) -> bool:
        """Return True if ``param.grad`` is a tensor that holds the result of a reduction."""
        grad = self.parameter.grad
        return grad is self.view or (self.reduced is not None and grad is self.reduced())

    @property
    def shape(self) -> Gradient:
        return Gradient(self.parameter.numel(), self.parameter.dtype, self.parameter.device)

    @property
    def view(self) -> Any:
        """View of this gradient's part of its bucket, or None if the gradient is in no bucket.

        The view is ``param.grad`` itself unless the program has replaced ``param.grad``.
        """
        return None if self.bucket is None else self.bucket.views[self.place]


def is_part(grad: torch.Tensor) -> bool:
    """Return True if ``grad`` is part of a larger tensor, as are the gradients of the inputs of ``torch.cat``.

    All parts share one version number, which changes if any part is modified.
    """
    return not grad.is_sparse and grad.untyped_storage().nbytes() > grad.numel() * grad.element_size()


class Bucket(Arrivals):
    """Memory that holds gradients of the same dtype and device, which are reduced as one tensor."""

    __slots__ = (
        "_addresses",
        "_device",
        "_dtype",
        "_memory_prepared",
        "_originals",
        "_parameters",
        "_storage",
        "_storage_uses",
        "_view_uses",
        "cannot_change",
        "changed",
        "flat",
        "gathered",
        "incomplete_steps",
        "job",
        "kind_changed",
        "members",
        "name",
        "submitted",
        "views",
    )

    def __init__(self, name: str, members: Sequence[Slot], kind: Gradient, job: Any) -> None:
        """Allocate the bucket's memory and assign parameters to it.

        Args:
            name: Name of the operation.
            members: Parameters whose gradients form the bucket.
            kind: Description of any gradient with the dtype and device of the members.
            job: Job in which the bucket was created. After a restart of an elastic job, other ranks lack the bucket.
        """
        super().__init__()
        self.name = name
        self.members = list(members)
        self.job = job
        # Number of consecutive steps in which at least one of the bucket's gradients existed on no rank.
        self.incomplete_steps = 0
        # True if a parameter's dtype or device has changed.
        self.kind_changed = False
        self._dtype = kind.dtype
        self._device = kind.device
        # Streams on which gradients have arrived, or None on the CPU.
        self.streams = None if self._device.type == "cpu" else devices.Streams(self._device)
        self._parameters = [slot.parameter for slot in self.members]
        # Gradient tensors that were copied to the bucket, but that param.grad still refers to.
        self._originals: dict[Slot, torch.Tensor] = {}
        self._allocate()
        for place, slot in enumerate(self.members):
            slot.bucket = self
            slot.place = place
            slot.copy_on_arrival = slot.shape.nbytes > _AT_ONCE and self.streams is None
        self.restart()

    def restart(self) -> None:
        """Reset the per-step state."""
        # Number of the bucket's gradients that backward has not produced yet in this step.
        self.waiting_for = len(self.members)
        # True if all gradients are views of the bucket and none is missing.
        self.gathered = False
        # True if the bucket was submitted as a single tensor.
        self.submitted = False
        # True if gradients are guaranteed not to have changed since the call of ``gather``.
        self.cannot_change = False
        self._memory_prepared = False
        self._originals.clear()
        if self.streams is not None:
            self.streams.forget()
        # Each gradient tensor as it arrived or was submitted, and its version counter at that time. If they differ from
        # the current tensor and its counter, the gradient has changed since.
        self.arrived: list[Any] = [None] * len(self.members)
        self.versions = [0] * len(self.members)
        # First parameter whose gradient has changed since it arrived.
        self.changed: Slot | None = None

    def _allocate(self) -> None:
        # Use the bucket's dtype even if a parameter's dtype has changed on this rank, because other ranks still use the
        # old dtype.
        starts, nbytes = offsets([Gradient(p.numel(), self._dtype, self._device) for p in self._parameters])
        if self.streams is None:
            self.flat = shared_buffer(nbytes).view(self._dtype)
        else:
            self.flat = devices.zeros(nbytes // self._dtype.itemsize, self._dtype, self._device)
        self._addresses = [self.flat.data_ptr() + start for start in starts]
        self.views: list[torch.Tensor] = [self._view(place) for place in range(len(starts))]
        # Record the reference counts before the program holds any references. Higher counts later reveal that the
        # program has kept a gradient.
        self._storage = self.flat.untyped_storage()._cdata
        self._storage_uses = _storage_uses(self._storage)
        self._view_uses = max(map(sys.getrefcount, self.views))

    def _view(self, place: int) -> torch.Tensor:
        start = (self._addresses[place] - self.flat.data_ptr()) // self.flat.element_size()
        # Use set_() instead of view(), so that each gradient has its own version counter.
        view = self.flat.new_empty(0)
        return view.set_(self.flat.untyped_storage(), start, self._parameters[place].shape)

    # Return True if the view still points to its place in the bucket. ``p.grad.data = ...`` (which ``Module.to`` uses
    # too), ``set_`` and ``t_`` make the tensor point elsewhere, so later changes would not reach the bucket.
    def _in_place(self, place: int) -> bool:
        view = self.views[place]
        return view.data_ptr() == self._addresses[place] and view.dtype is self._dtype and view.is_contiguous()

    def _all_in_place(self) -> bool:
        return list(map(_pointer_of, self.views)) == self._addresses and all(map(_is_contiguous, self.views))

    def gather(self, cannot_change: bool) -> None:
        """Make all gradients views of the bucket.

        A parameter without a gradient gets zeros. ``cannot_change`` is True if gradients are guaranteed not to change
        before the reduction. Otherwise, their version counters are recorded, to detect changes.
        """
        whole = self._take_natively()
        if not whole:
            self.detect_change()
            with self.streams or contextlib.nullcontext():
                whole = self.changed is None and self.waiting_for == 0 and self._take_all()
                if self.changed is not None or self.waiting_for:
                    for slot in self.members:
                        self.fill(slot)
        self.arrived = self.views.copy() if whole else list(map(_grad_of, self._parameters))
        self.cannot_change = cannot_change
        if not cannot_change:
            self.versions = list(map(_version_of, self.arrived))
        self.gathered = True

    def detect_change(self) -> None:
        """Set ``changed`` to the first gradient that was replaced or modified since it arrived or was gathered."""
        if self.cannot_change:
            return
        arrived, versions = self.arrived, self.versions
        if (
            self.waiting_for == 0
            and all(map(is_, map(_grad_of, self._parameters), arrived))
            and list(map(_version_of, arrived)) == versions
        ):
            return
        for slot, grad, version, view in zip(self.members, arrived, versions, self.views, strict=True):
            if grad is None:
                continue
            modified = grad._version != version and (grad is view or not is_part(grad))
            if modified or slot.parameter.grad is not grad:
                self.changed = self.changed or slot

    def _take_natively(self) -> bool:
        """Copy all gradients to the bucket in one native call, and make them views of it.

        The native code also makes the checks of ``detect_change`` and ``_take_all``, but faster.

        Returns:
            False, with nothing changed, if some gradient is missing, has changed, or needs the general path.
        """
        if self.waiting_for or self.streams is not None or not (_exchange and _mark_modified):
            return False
        if not self._memory_prepared and self._is_referenced():
            return False
        lists = self._parameters, self.arrived, self.versions, self.views, self._addresses
        if not take_gradients(_exchange, *lists):
            return False
        self._memory_prepared = True
        _mark_modified(self.views)
        return True

    def _take_all(self) -> bool:
        """Copy all gradients to the bucket in one call. Return True if all of them are now views of it."""
        if all(map(is_, self.arrived, self.views)) and self._all_in_place():
            return True
        if not self._memory_prepared:
            self._prepare_memory()
        elif not self._all_in_place():
            self._put_in_place()
        grads = self.arrived
        if not any(map(_needs_grad, grads)):
            try:
                # Inference mode avoids autograd's overhead but still updates version counters.
                with torch.inference_mode():
                    _copy_all(self.views, grads)
                for p, view in zip(self._parameters, self.views, strict=True):
                    p.grad = view
                return True
            except RuntimeError:
                # Copy the gradients one by one below. This happens if a gradient is sparse, or if parameters have a new
                # dtype or device.
                pass
        for slot in self.members:
            self.take(slot)
        return False

    def take(self, slot: Slot) -> None:
        """Make a parameter's gradient a view of the bucket."""
        p = slot.parameter
        grad = p.grad
        if grad is slot.view and self._in_place(slot.place):
            return
        assert grad is not None
        if not self._memory_prepared:
            self._prepare_memory()
        if not self._in_place(slot.place):
            self.views[slot.place] = self._view(slot.place)
        view = slot.view
        if p.dtype is not view.dtype or p.device != view.device:
            self.kind_changed = True
        if grad.requires_grad or grad.dtype is not view.dtype or grad.device != view.device:
            self._originals[slot] = grad.detach()
            view.copy_(grad.detach())
            return
        view.copy_(grad.to_dense() if grad.is_sparse else grad)
        p.grad = view

    def _prepare_memory(self) -> None:
        """Prepare the bucket's memory for the first copy of a step.

        If the program still uses gradients of earlier steps, or views of them, the bucket moves to new memory.
        """
        self._memory_prepared = True
        if not self._all_in_place():
            self._put_in_place()
        if not self._is_referenced():
            return
        before = self.views
        self._allocate()
        for place, (p, old) in enumerate(zip(self._parameters, before, strict=True)):
            if p.grad is old:
                view = self.views[place]
                view.copy_(old)
                p.grad = view
                if self.arrived[place] is old and self.versions[place] == old._version:
                    self.arrived[place], self.versions[place] = view, view._version

    def _is_referenced(self) -> bool:
        """Return True if the program still uses gradients of earlier steps, or views of them."""
        if _storage_uses(self._storage) > self._storage_uses:
            return True
        if max(map(sys.getrefcount, self.views)) <= self._view_uses:
            return False
        # Skip tensors that are a parameter's gradient, because autograd may hold another reference to them.
        loose = [view for p, view in zip(self._parameters, self.views, strict=True) if p.grad is not view]
        # Add 1, because the list ``loose`` itself holds a reference to each tensor.
        return bool(loose) and max(map(sys.getrefcount, loose)) > self._view_uses + 1

    def _put_in_place(self) -> None:
        for place in range(len(self.members)):
            if not self._in_place(place):
                self.views[place] = self._view(place)

    def fill(self, slot: Slot) -> None:
        """Make a parameter's gradient a view of the bucket.

        A parameter without a gradient gets zeros.
        """
        if slot.parameter.grad is None:
            slot.parameter.grad = torch.zeros_like(slot.parameter, memory_format=torch.contiguous_format)
        self.take(slot)

    def store_result(self, slot: Slot | None) -> None:
        """Copy results to gradients that are not views of the bucket. If ``slot`` is given, copy only its result."""
        for of in [slot] if slot is not None else list(self._originals):
            grad = self._originals.pop(of, None)
            if grad is not None:
                grad.copy_(of.view)
                of.note_reduced()

    def dissolve(self) -> None:
        """Dissolve the bucket. The gradients remain views of its memory."""
        for slot in self.members:
            if slot.has_reduced():
                slot.note_reduced()
            slot.bucket = None
            slot.copy_on_arrival = False
            slot.moves += 1
