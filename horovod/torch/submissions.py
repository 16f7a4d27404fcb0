"""Gradients on their way: submitted, and then put in their places."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from horovod.common.ops import Max
from horovod.torch.buckets import Bucket, Slot
from horovod.torch.compression import wire_of
from horovod.torch.ops import handles, profiling
from horovod.torch.ops.allreduce import submit
from horovod.torch.ops.tensors import plain
from horovod.torch.options import Options
from horovod.torch.residuals import Residuals
from horovod.torch.sparse import sparse_allreduce_async


class Group:
    """Gradients that are submitted together."""

    __slots__ = ("members", "waiting_for")

    def __init__(self, members: list[Slot]) -> None:
        self.members = members
        self.waiting_for = len(members)


def watch(slot: Slot) -> None:
    """Notes what the slot's gradient is now; see ``check``."""
    grad = slot.parameter.grad
    slot.watched = grad
    slot.version = grad._version  # type: ignore[union-attr]


def check(slot: Slot) -> None:
    """Raises RuntimeError, naming the parameter, when its gradient is no more what was submitted."""
    watched = slot.watched
    if watched is not None and (slot.parameter.grad is not watched or watched._version != slot.version):
        raise RuntimeError(
            f"gradient {slot.name!r} was changed or replaced while it was being reduced, by a hook, another thread "
            "or another DistributedOptimizer that has this parameter, too; change gradients after backward() has "
            "returned, when they are reduced"
        )


class Submissions:
    """What one optimizer has on its way."""

    def __init__(self, options: Options) -> None:
        self._options = options
        # By slot, bucket or tensor: what waits for the result and puts it in its place.
        self._pending: dict[Any, Callable[[], None]] = {}
        self._wire = wire_of(options.compression)
        self._residuals = Residuals() if getattr(options.compression, "error_feedback", False) else None

    def __contains__(self, key: Any) -> bool:
        return key in self._pending

    def __len__(self) -> int:
        return len(self._pending)

    def vote(self, outcome: torch.Tensor, name: str) -> Any:
        """Reduces ``outcome`` in place with Max and returns its Work."""
        work = submit(outcome, outcome, name, Max, 1.0, 1.0, self._options.process_set)
        self._pending[outcome] = lambda: handles.wait(work, outcome)
        return work

    def one(self, slot: Slot) -> None:
        """Submits a gradient that is in no bucket."""
        p = slot.parameter
        grad = p.grad
        assert grad is not None
        name = "allreduce." + slot.name
        if not grad.is_sparse or self.makes_dense:
            if grad.is_sparse:
                p.grad = grad = grad.to_dense()
            watch(slot)
            self._submit(slot, (slot,), grad, name)
            return
        watch(slot)
        wait = sparse_allreduce_async(grad, slot.name, self._options.op, self._options.process_set)

        def finish() -> None:
            result = wait()
            check(slot)
            p.grad = result

        self._pending[slot] = finish

    @property
    def makes_dense(self) -> bool:
        """Are sparse gradients made dense?"""
        return self._options.sparse_as_dense

    def group(self, group: Group, stand_ins: dict[Slot, torch.Tensor] | None = None) -> None:
        """Submits a group together. ``stand_ins``: zeros for members without a gradient, which stay without one.

        Sparse gradients cannot be part of a group and go alone.
        """
        grads = {}
        for slot in group.members:
            p = slot.parameter
            if stand_ins and slot in stand_ins:
                grads[slot] = stand_ins[slot]
            elif p.grad.is_sparse and not self.makes_dense:
                self.one(slot)
            else:
                if p.grad.is_sparse:
                    p.grad = p.grad.to_dense()
                watch(slot)
                grads[slot] = p.grad
        name = f"grouped_allreduce.{group.members[0].name}"
        for i, (slot, grad) in enumerate(grads.items()):
            self._submit(slot, (slot,), grad, f"{name}_{i + 1}of{len(grads)}", name, len(grads))

    def bucket(self, bucket: Bucket) -> None:
        """Submits a whole bucket."""
        bucket.sent = True
        bucket.partly_sent = 0
        self._submit(bucket, bucket.members, bucket.flat, bucket.name)

    def out_of_bucket(self, slot: Slot) -> None:
        """Submits one gradient of a bucket from its place there."""
        self._submit(slot, (slot,), slot.view, "allreduce." + slot.name)

    def _submit(
        self, key: Any, members: Any, grad: torch.Tensor, name: str, group: str = "", group_size: int = 0
    ) -> None:
        """Puts ``grad``, a dense gradient or a bucket of them, on its way; the result will be written into it."""
        options = self._options
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
            for slot in members:
                check(slot)
            result = options.compression.decompress(tensor, context)
            if result is not grad:
                grad.copy_(result)
            for slot in members:
                if slot.bucket is not None:
                    slot.bucket.hand_out(slot)

        self._pending[key] = finish

    def finish(self) -> None:
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

    def forget(self) -> None:
        """Waits for what is on its way, ignoring failures, and forgets what compression has lost so far."""
        with contextlib.suppress(Exception):
            self.finish()
        if self._residuals is not None:
            self._residuals.clear()
