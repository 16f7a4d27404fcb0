"""The reduction of a model's gradients while the backward pass still runs.

Each parameter has a hook that autograd calls when its gradient is complete; the hook hands the gradient to the engine
and returns. What is left is done in ``synchronize``: submit what is there but not yet on its way, find out what only
other ranks have, wait for all.

Ranks may have gradients for different parameters (a branch of the model that only some ranks' data took). So in
``synchronize`` every rank contributes a vector of flags, one byte for each parameter, to a small reduction with Max:
0 for no gradient, 1 for a dense one, 1 + k for a sparse one with k sparse dimensions. A rank that lacks a gradient
waits for the outcome and contributes zeros if some rank has one. If no rank has one, the gradient stays None, as it
does in a process that trains alone, so momentum and weight decay leave the parameter alone. Ranks that have all
gradients never wait for the flags before they submit.

Gradients go alone at first and share buckets later (bucketing.py). A bucket is submitted when all its gradients have
arrived. If some of them are missing on all ranks, the others go alone in this step, straight from their places in the
bucket.
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from horovod.common.faces import TORCH as face
from horovod.common.ops import Average, Max
from horovod.common.process_sets import ProcessSet
from horovod.torch.bucketing import APART, DENSE, Bucketing
from horovod.torch.buckets import Bucket, Slot
from horovod.torch.compression import Compression, wire_of
from horovod.torch.hooks import Hooks
from horovod.torch.ops import handles, profiling
from horovod.torch.ops.allreduce import submit
from horovod.torch.ops.tensors import plain
from horovod.torch.residuals import Residuals
from horovod.torch.sparse import sparse_allreduce_async


@dataclass
class Options:
    """How gradients are reduced; see ``DistributedOptimizer``."""

    process_set: ProcessSet
    compression: Any = Compression.none
    op: int = Average
    prescale: float = 1.0
    postscale: float = 1.0
    sparse_as_dense: bool = False
    passes: int = 1
    groups: list[list[torch.Tensor]] = field(default_factory=list)
    bucket_most: int = 0
    """Gradients of at most so many bytes share buckets, if all ranks say so; 0: none."""


def too_many_passes(name: str, passes: int) -> AssertionError:
    """What is raised when backward computes a gradient once more than the optimizer expects."""
    return AssertionError(
        f"gradient {name!r} was computed more than backward_passes_per_step={passes} "
        "times before step() or synchronize(); raise backward_passes_per_step to sum up gradients locally"
    )


class _Group:
    """Gradients that are submitted together."""

    __slots__ = ("members", "waiting_for")

    def __init__(self, members: list[Slot]) -> None:
        self.members = members
        self.waiting_for = len(members)


class GradientReducer:
    """The gradients of one optimizer."""

    def __init__(self, parameters: Sequence[torch.Tensor], names: dict[torch.Tensor, str], options: Options) -> None:
        """``names``: of every parameter, unique among the operations of the process set and equal on all ranks."""
        self.options = options
        self._slots: list[Slot] = []
        self._hooks = Hooks(self)
        # By slot, bucket or tensor that is on its way: what waits for the result and puts it in its place.
        self._pending: dict[Any, Callable[[], None]] = {}
        self._groups: list[_Group] = []
        self._wire = wire_of(options.compression)
        self._residuals = Residuals() if getattr(options.compression, "error_feedback", False) else None
        self._bucketing = Bucketing(options.bucket_most, options.process_set)
        self.add(parameters, names)
        slot_of = {slot.parameter: slot for slot in self._slots}
        for members in options.groups:
            self._groups.append(_Group([slot_of[p] for p in members]))
            for slot in self._groups[-1].members:
                slot.group = self._groups[-1]

    def add(self, parameters: Iterable[torch.Tensor], names: dict[torch.Tensor, str]) -> None:
        """Takes care of more parameters."""
        for p in parameters:
            slot = Slot(p, names[p], len(self._slots), self.options.passes)
            self._slots.append(slot)
            self._hook(slot)

    def close(self) -> None:
        """Removes the hooks; to be used when nothing is pending."""
        for slot in self._slots:
            if slot.hook is not None:
                slot.hook.remove()
                slot.hook = None

    @property
    def busy(self) -> bool:
        """Are gradients on their way?"""
        return bool(self._pending)

    def reset(self) -> None:
        """Waits for what is on its way, ignoring failures, forgets what compression has lost so far, and starts to
        count backward passes anew."""
        with contextlib.suppress(Exception):
            self._finish()
        if self._residuals is not None:
            self._residuals.clear()
        self._restart()

    def set_passes(self, passes: int) -> None:
        """Reduces after so many backward passes from now on."""
        self.options.passes = passes
        self.reset()

    def _hook(self, slot: Slot) -> None:
        if not slot.parameter.requires_grad or slot.hook is not None:
            return
        self._hooks.add(slot)

    def on_gradient(self, slot: Slot) -> None:
        """A backward pass has made the slot's gradient."""
        left = slot.left - 1
        if left < 0:
            raise too_many_passes(slot.name, self.options.passes)
        slot.left = left
        if slot.bucket is not None and slot.bucket.job is not face.job:
            self._bucketing.drop_outdated()
        bucket, group = slot.bucket, slot.group
        if bucket is not None:
            bucket.take(slot)
            if left == 0:
                bucket.waiting_for -= 1
                if bucket.waiting_for == 0:
                    self._submit_bucket(bucket)
        elif left == 0 and group is None:
            self._bucketing.arrived.append(slot)
            self._submit_one(slot)
        elif left == 0:
            group.waiting_for -= 1
            if group.waiting_for == 0:
                self._submit_group(group)

    def _submit(
        self, key: Any, grad: torch.Tensor, name: str, group: str = "", group_size: int = 0
    ) -> Callable[[], None]:
        """Puts ``grad``, a dense gradient or a bucket of them, on its way and returns what waits for the result and
        writes it into ``grad``. ``key``: in ``_pending``."""
        options = self.options
        grad = grad.detach()
        tensor, context = options.compression.compress(grad)
        # Another layout than the plain one (channels last) may not be the same on all ranks.
        tensor = plain(tensor)
        residual = self._residuals.of(key, tensor) if self._residuals is not None else None
        work = submit(
            tensor,
            tensor,
            name,
            options.op,
            options.prescale,
            options.postscale,
            options.process_set,
            group,
            group_size,
            wire=self._wire,
            residual=residual,
        )
        if profiling.running():
            profiling.mark(work)

        def finish() -> None:
            handles.wait(work, (tensor, residual))
            result = options.compression.decompress(tensor, context)
            if result is not grad:
                grad.copy_(result)

        self._pending[key] = finish
        return finish

    def _submit_one(self, slot: Slot) -> None:
        p = slot.parameter
        grad = p.grad
        assert grad is not None
        if not grad.is_sparse:
            self._submit(slot, grad, "allreduce." + slot.name)
        elif self.options.sparse_as_dense:
            p.grad = grad.to_dense()
            self._submit(slot, p.grad, "allreduce." + slot.name)
        else:
            wait = sparse_allreduce_async(grad, slot.name, self.options.op, self.options.process_set)

            def finish() -> None:
                p.grad = wait()

            self._pending[slot] = finish

    def _submit_group(self, group: _Group, stand_ins: dict[Slot, torch.Tensor] | None = None) -> None:
        """Submits a group together. ``stand_ins``: zeros for members without a gradient, which stay without one.

        Sparse gradients cannot be part of a group and go alone.
        """
        grads = {}
        for slot in group.members:
            p = slot.parameter
            if stand_ins and slot in stand_ins:
                grads[slot] = stand_ins[slot]
            elif self._sparse_dims(slot):
                self._submit_one(slot)
            else:
                if p.grad.is_sparse:
                    p.grad = p.grad.to_dense()
                grads[slot] = p.grad
        name = f"grouped_allreduce.{group.members[0].name}"
        for i, (slot, grad) in enumerate(grads.items()):
            self._submit(slot, grad, f"{name}_{i + 1}of{len(grads)}", name, len(grads))

    def _submit_bucket(self, bucket: Bucket) -> None:
        bucket.sent = True
        bucket.partly_sent = 0
        wait = self._submit(bucket, bucket.flat, bucket.name)

        def finish() -> None:
            wait()
            for slot in bucket.members:
                bucket.hand_out(slot)

        self._pending[bucket] = finish

    def _sparse_dims(self, slot: Slot) -> int:
        """Sparse dimensions of the gradient as it will be reduced, 0 for a dense one."""
        grad = slot.parameter.grad
        dense = not grad.is_sparse or self.options.sparse_as_dense or slot.bucket is not None
        return 0 if dense else grad.sparse_dim()

    def synchronize(self, only_new: bool) -> None:
        """Completes the reduction of every gradient; all ranks of the set call it.

        ``only_new``: leaves gradients alone that no backward pass has touched since the last time; otherwise all that
        are there are reduced. Raises HorovodInternalError when ranks disagree or one is lost; nothing is pending then.
        """
        if not self._slots:
            return
        try:
            with torch.no_grad():
                self._complete(only_new)
        except Exception:
            self.reset()
            raise
        self._restart()

    def _complete(self, only_new: bool) -> None:
        self._bucketing.drop_outdated()
        flags = self._flags(only_new)
        outcome = torch.tensor([*flags, *self._bucketing.wishes()], dtype=torch.uint8)
        name = f"allreduce.gradients.{self._slots[0].name}"
        vote = submit(outcome, outcome, name, Max, 1.0, 1.0, self.options.process_set)
        self._pending[outcome] = lambda: handles.wait(vote, outcome)
        if not self._submit_mine(flags):
            handles.wait(vote, outcome)
            self._submit_theirs(outcome.tolist())
        self._finish()
        self._bucketing.rearrange(self._slots, outcome.tolist())

    def _flags(self, only_new: bool) -> list[int]:
        """By parameter: 0 without a gradient to reduce, 1 + sparse dimensions for a sparse one, else what
        ``Bucketing.flag`` says."""
        passes = self.options.passes
        flags = []
        for slot in self._slots:
            grad = slot.parameter.grad
            if slot.bucket is not None and slot.bucket.sent:
                flags.append(DENSE)
            elif grad is None or (only_new and slot.hook is not None and slot.left == passes):
                flags.append(0)
            else:
                dims = self._sparse_dims(slot)
                flags.append(1 + dims if dims else self._bucketing.flag(slot))
        return flags

    def _submit_mine(self, flags: list[int]) -> bool:
        """Submits what this rank has and has not submitted yet. Is everything on its way then?"""
        everything = True
        for slot, flag in zip(self._slots, flags, strict=True):
            if slot.bucket is None and slot.group is None and slot not in self._pending:
                if flag:
                    self._submit_one(slot)
                else:
                    everything = False
        for bucket in self._bucketing.buckets:
            if not bucket.sent:
                if all(flags[slot.index] for slot in bucket.members):
                    self._fill_and_submit(bucket)
                else:
                    everything = False
        for group in self._groups:
            if not self._is_pending(group):
                complete = all(flags[slot.index] for slot in group.members)
                if complete:
                    self._submit_group(group)
                everything = everything and complete
        return everything

    def _submit_theirs(self, flags: list[int]) -> None:
        """Submits zeros, or old gradients, for what only other ranks have. ``flags``: of all ranks together."""
        for slot in self._slots:
            flag = flags[slot.index]
            if flag and slot.bucket is None and slot.group is None and slot not in self._pending:
                _fill(slot.parameter, flag)
                self._submit_one(slot)
        for bucket in self._bucketing.buckets:
            if not bucket.sent:
                self._submit_rest_of_bucket(bucket, flags)
        for group in self._groups:
            if not self._is_pending(group) and any(flags[slot.index] for slot in group.members):
                for slot in group.members:
                    if flags[slot.index]:
                        _fill(slot.parameter, flags[slot.index])
                missing = [slot for slot in group.members if not flags[slot.index]]
                self._submit_group(group, {slot: torch.zeros_like(slot.parameter) for slot in missing})

    def _submit_rest_of_bucket(self, bucket: Bucket, flags: list[int]) -> None:
        """Submits a bucket that some rank lacks gradients of: as a whole if other ranks have all those; else what
        there is goes one by one, because old gradients in the bucket must not be reduced once more."""
        there = [slot for slot in bucket.members if flags[slot.index]]
        if len(there) == len(bucket.members):
            self._fill_and_submit(bucket)
        elif there:
            bucket.partly_sent += 1
            for slot in there:
                self._submit_out_of_bucket(bucket, slot)

    def _fill_and_submit(self, bucket: Bucket) -> None:
        for slot in bucket.members:
            bucket.fill(slot)
        self._submit_bucket(bucket)

    def _submit_out_of_bucket(self, bucket: Bucket, slot: Slot) -> None:
        bucket.fill(slot)
        wait = self._submit(slot, slot.view, "allreduce." + slot.name)

        def finish() -> None:
            wait()
            bucket.hand_out(slot)

        self._pending[slot] = finish

    def _is_pending(self, group: _Group) -> bool:
        return any(slot in self._pending for slot in group.members)

    def _finish(self) -> None:
        """Waits for all that is pending, also when one fails, then raises the first failure."""
        failure: Exception | None = None
        with torch.no_grad():
            while self._pending:
                # Taken out one by one: an interrupt leaves the rest, and so their memory, in place.
                key = next(iter(self._pending))
                try:
                    self._pending[key]()
                except Exception as error:
                    failure = failure or error
                del self._pending[key]
        if failure is not None:
            raise failure

    def _restart(self) -> None:
        passes = self.options.passes
        for slot in self._slots:
            slot.left = passes
            if slot.hook is None:
                self._hook(slot)  # it may have been frozen until now
        for group in self._groups:
            group.waiting_for = len(group.members)
        self._bucketing.restart()


def _fill(p: torch.Tensor, flag: int) -> None:
    """Gives ``p`` a gradient of zeros, of the kind that ``flag`` says, if it has none."""
    if p.grad is not None:
        return
    if flag in (DENSE, DENSE | APART):
        p.grad = torch.zeros_like(p)
        return
    dims = flag - 1
    indices = torch.empty((dims, 0), dtype=torch.int64, device=p.device)
    values = torch.empty((0, *p.shape[dims:]), dtype=p.dtype, device=p.device)
    p.grad = torch.sparse_coo_tensor(indices, values, p.shape)
