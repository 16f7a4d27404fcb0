"""Parameters in flat buckets, the reduction of their gradients to shards, and the gathering of updated parameters."""

import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from horovod.common.ops import Sum
from horovod.common.process_sets import ProcessSet
from horovod.torch.ops import handles
from horovod.torch.ops.allgather import allgather_async
from horovod.torch.ops.allreduce import allreduce_
from horovod.torch.ops.reducescatter import reducescatter_async
from horovod.torch.ops.tensors import set_rank_and_size
from horovod.torch.sharded.layout import Item, Layout, Segment, make_layouts, segments

_MAX_IN_FLIGHT = 4  # buckets whose gradients wait for other ranks
_WAIT_SECONDS = 1.0


class Bucket:
    """Flat memory of some parameters, which become views of it, and this rank's shard of it."""

    def __init__(self, name: str, layout: Layout, parameters: Sequence[torch.Tensor], rank: int, ranks: int) -> None:
        self.name = name  # of its operations
        self.layout = layout
        self.members = [parameters[i] for i in layout.indices]
        self.flat = self.members[0].new_zeros(layout.shard * ranks)
        with torch.no_grad():
            for p, offset in zip(self.members, layout.offsets, strict=True):
                view = self.flat[offset : offset + p.numel()].view(p.shape)
                view.copy_(p)
                p.data = view
        self.shard = self.flat[rank * layout.shard : (rank + 1) * layout.shard]
        self.segments = segments(layout, [p.numel() for p in parameters], rank)
        self.handle: int | None = None
        self.reduced: torch.Tensor | None = None  # this rank's shard of the gradients
        self.missing: set[torch.Tensor] = set()

    def take_gradients(self) -> torch.Tensor:
        """Return the gradients as one flat tensor, zeros where there is none, and release those of the parameters."""
        flat, end = torch.empty_like(self.flat), 0
        for p, offset in zip(self.members, self.layout.offsets, strict=True):
            end = offset + p.numel()
            part = flat[offset:end]
            if p.grad is None:
                part.zero_()
                continue
            part.view(p.shape).copy_(p.grad.to_dense() if p.grad.layout is not torch.strided else p.grad)
            p.grad = None
        flat[end:].zero_()
        return flat

    def finish(self) -> torch.Tensor:
        """Wait for the reduction, and return this rank's shard of the gradients."""
        if self.reduced is None:
            handle, self.handle = self.handle, None
            assert handle is not None
            self.reduced = handles.synchronize(handle)
        return self.reduced

    def moved(self) -> bool:
        """Return True if a parameter is no longer a view of this bucket."""
        at, width = self.flat.data_ptr(), self.flat.element_size()
        offsets = zip(self.members, self.layout.offsets, strict=True)
        return any(p.numel() and p.data_ptr() != at + offset * width for p, offset in offsets)


class Shards:
    """All buckets of an optimizer. Reduces gradients while ``backward()`` runs; the last pass before a step does."""

    def __init__(
        self,
        groups: Sequence[Sequence[torch.Tensor]],
        names: dict[torch.Tensor, str],
        wire: str,
        op: int,
        passes: int,
        process_set: ProcessSet,
    ) -> None:
        self.parameters = [p for group in groups for p in group]
        self.names, self.wire, self.op, self.passes, self.process_set = names, wire, op, passes, process_set
        self.rank, self.ranks = set_rank_and_size(process_set, "ShardedOptimizer")
        of_group = [i for i, group in enumerate(groups) for _ in group]
        items = [
            Item((g, p.dtype, p.device), p.numel(), p.element_size())
            for g, p in zip(of_group, self.parameters, strict=True)
        ]
        self.buckets = [
            Bucket(f"{wire}.{i}", layout, self.parameters, self.rank, self.ranks)
            for i, layout in enumerate(make_layouts(items, self.ranks))
        ]
        self.owned: list[tuple[Segment, torch.Tensor, Bucket]] = [
            (s, bucket.shard[s.offset : s.offset + s.stop - s.start], bucket)
            for bucket in self.buckets
            for s in bucket.segments
        ]
        self.group_of = of_group
        device = self.parameters[0].device
        # Gets an infinite gradient if any rank has an overflow, so that GradScaler skips the step on every rank.
        self.guard = torch.zeros(1, device=device)
        self._of = {p: bucket for bucket in self.buckets for p in bucket.members}
        self._used: set[torch.Tensor] = set()
        self._in_flight: deque[Bucket] = deque()
        self._done = 0  # backward passes since the last step
        self._queued = False
        itself = weakref.ref(self)

        def hook(p: torch.Tensor) -> None:
            if (shards := itself()) is not None:
                shards._has_gradient(p)

        # A frozen parameter gets its hook too, because it may be unfrozen; registration requires requires_grad.
        for p in self.parameters:
            frozen = not p.requires_grad
            p.requires_grad_(True)
            p.register_post_accumulate_grad_hook(hook)
            p.requires_grad_(not frozen)
        self.reset()

    def reset(self) -> None:
        """Discard the gradients of all buckets."""
        for bucket in self.buckets:
            if bucket.handle is not None:
                handles.synchronize(bucket.handle)
            bucket.handle = bucket.reduced = None
            bucket.missing = {p for p in bucket.members if p.requires_grad}
        for _, tensor, _ in self.owned:
            tensor.grad = None
        self.guard.grad = None
        self._used.clear()
        self._in_flight.clear()
        self._done, self._queued = 0, False

    def _has_gradient(self, p: torch.Tensor) -> None:
        bucket = self._of[p]
        if bucket.reduced is not None or bucket.handle is not None:
            raise RuntimeError(
                f"backward() computed a gradient of {self.names[p]!r} after its gradients were reduced; call step() or "
                "zero_grad() first, pass backward_passes_per_step=n to accumulate n passes, and use activation "
                "checkpointing with use_reentrant=False"
            )
        if not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end_of_pass)
        self._used.add(p)
        if self._done == self.passes - 1:
            bucket.missing.discard(p)
            if not bucket.missing:
                self._start(bucket)

    def _start(self, bucket: Bucket) -> None:
        self._release()
        self._in_flight.append(bucket)
        bucket.handle = reducescatter_async(bucket.take_gradients(), bucket.name, self.op, self.process_set)

    def _release(self) -> None:
        """Release the gradients of buckets that are reduced. If many are in flight, wait for the oldest one.

        The wait has a limit, because another rank may compute gradients in another order and wait for this rank, too.
        """
        while self._in_flight:
            oldest = self._in_flight[0]
            assert oldest.handle is not None
            seconds = _WAIT_SECONDS if len(self._in_flight) >= _MAX_IN_FLIGHT else 0.0
            if not handles.wait_briefly(oldest.handle, seconds):
                return
            self._in_flight.popleft().finish()

    def _end_of_pass(self) -> None:
        self._queued = False
        self._done += 1
        if self._done == self.passes:
            self.synchronize()

    def synchronize(self) -> None:
        """Reduce the gradients that are not reduced yet. Every rank must call it or run the same backward passes."""
        if self.guard.grad is not None:
            return
        for bucket in self.buckets:
            if bucket.handle is None and bucket.reduced is None:
                self._start(bucket)
        self._in_flight.clear()
        sums = []
        for bucket in self.buckets:
            values = bucket.finish()
            sums.append(values.sum(dtype=torch.float64 if values.dtype == torch.float64 else torch.float32))
        finite = all(bool(value.isfinite()) for value in sums)
        flags = [float(p in self._used) for p in self.parameters]
        agreed = torch.tensor([float(not finite), *flags], device="cpu")
        allreduce_(agreed, name=f"{self.wire}.used", op=Sum, process_set=self.process_set)
        overflow, *used = agreed.tolist()
        self.guard.grad = torch.full_like(self.guard, float("inf") if overflow else 0.0)
        for segment, tensor, bucket in self.owned:
            shard = bucket.reduced
            assert shard is not None
            tensor.grad = shard[segment.offset : segment.offset + tensor.numel()] if used[segment.index] else None

    def check_memory(self) -> None:
        """Check that the parameters still are views of the buckets.

        Raises:
            RuntimeError: A parameter's memory was replaced.
        """
        if any(bucket.moved() for bucket in self.buckets):
            raise RuntimeError(
                "a parameter's memory was replaced after ShardedOptimizer was created, for example by model.to(); "
                "move the model first, then create the optimizer"
            )

    @torch.no_grad()
    def gather(self) -> None:
        """Give every rank the updated parameters, bucket by bucket, with at most two buckets in flight."""

        def start(i: int) -> int:
            return allgather_async(self.buckets[i].shard, self.buckets[i].name, self.process_set)

        pending = start(0)
        for i, bucket in enumerate(self.buckets):
            following = start(i + 1) if i + 1 < len(self.buckets) else 0
            bucket.flat.copy_(handles.synchronize(pending))
            pending = following

    def norm(self) -> torch.Tensor:
        """Return the 2-norm of the gradients of all ranks' shards, in float64."""
        total = torch.zeros(1, dtype=torch.float64, device="cpu")
        for _, tensor, _ in self.owned:
            if tensor.grad is not None:
                total += torch.linalg.vector_norm(tensor.grad, dtype=torch.float64).square().cpu()
        allreduce_(total, name=f"{self.wire}.norm", op=Sum, process_set=self.process_set)
        return total.sqrt()[0]

    def slice(self, segment: Segment, key: str, value: Any) -> Any:
        """Return the part of entry ``key`` of a parameter's state that belongs to ``segment``. Copy other entries."""
        p = self.parameters[segment.index]
        if isinstance(value, torch.Tensor) and value.shape == p.shape and key != "step":
            return value.detach().reshape(-1)[segment.start : segment.stop].to(p.device, copy=True)
        return value.detach().clone() if isinstance(value, torch.Tensor) else value
