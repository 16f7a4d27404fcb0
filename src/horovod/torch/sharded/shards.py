"""Sharding of parameters in flat buckets, with reduction of gradients."""

import contextlib
from _thread import get_ident
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch

from horovod.common.exceptions import HorovodInternalError
from horovod.common.frontends import TORCH as frontend
from horovod.common.ops import Max, Sum
from horovod.common.process_sets import ProcessSet
from horovod.common.training_loop.weights import refuse_weights
from horovod.torch.ops import handles
from horovod.torch.ops.allreduce import allreduce_, allreduce_async_
from horovod.torch.ops.reducescatter import reducescatter_async
from horovod.torch.ops.tensors import set_rank_and_size
from horovod.torch.reducer import backward
from horovod.torch.sharded.gathers import Gathers

# Buckets of parameters, and the segments of parameters that each rank owns. The code in this section uses neither
# tensors nor communication.

BUCKET_BYTES = 16 * 1024 * 1024


class Item(NamedTuple):
    """Size of a parameter, and a key that is equal for all parameters of a bucket.

    The key consists of the parameter group, the dtype and the device. ``size`` is the number of elements, and ``width``
    the number of bytes per element.
    """

    key: Hashable
    size: int
    width: int


class Segment(NamedTuple):
    """Elements ``start`` to ``stop`` of a parameter, stored at ``offset`` in a rank's shard of the bucket."""

    index: int
    start: int
    stop: int
    offset: int


class Layout(NamedTuple):
    """Layout of a bucket: the indices and offsets of its parameters, and the number of elements per shard."""

    indices: list[int]
    offsets: list[int]
    shard: int


def make_layouts(items: Sequence[Item], ranks: int, bucket_bytes: int = BUCKET_BYTES) -> list[Layout]:
    """Assign parameters to buckets that are split evenly among the ranks. All items in a bucket have the same ``key``.

    A bucket is closed when it reaches ``bucket_bytes``. Its size is rounded up to a multiple of ``ranks``.

    Returns:
        The buckets.
    """
    closed: list[list[int]] = []
    filling: dict[Hashable, list[int]] = {}
    filled: Counter[Hashable] = Counter()
    for index, item in enumerate(items):
        filling.setdefault(item.key, []).append(index)
        filled[item.key] += item.size * item.width
        if filled[item.key] >= bucket_bytes:
            closed.append(filling.pop(item.key))
            del filled[item.key]
    layouts = []
    for bucket in sorted([*closed, *filling.values()]):
        offsets, total = [], 0
        for index in bucket:
            offsets.append(total)
            total += items[index].size
        layouts.append(Layout(bucket, offsets, -(-total // ranks)))
    return layouts


def segments(layout: Layout, sizes: Sequence[int], rank: int) -> list[Segment]:
    """Return the segments of a bucket that ``rank`` owns, omitting padding and empty segments."""
    low, high = rank * layout.shard, (rank + 1) * layout.shard
    found = []
    for index, offset in zip(layout.indices, layout.offsets, strict=True):
        start, stop = max(low, offset), min(high, offset + sizes[index])
        if start < stop:
            found.append(Segment(index, start - offset, stop - offset, start - low))
    return found


# Maximum number of buckets whose reduction is in flight.
_MAX_IN_FLIGHT = 4
_WAIT_SECONDS = 1.0


class Bucket:
    """Flat memory of several parameters, divided into one shard per rank. The parameters are views of it."""

    def __init__(self, name: str, layout: Layout, parameters: Sequence[torch.Tensor], rank: int, ranks: int) -> None:
        # Name prefix of the bucket's operations.
        self.name = name
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
        # Function that decompresses this bucket's gradients.
        self._restore: Callable[[torch.Tensor], torch.Tensor]
        # This rank's shard of the reduced gradients.
        self.reduced: torch.Tensor | None = None
        self.missing: set[torch.Tensor] = set()

    def take_gradients(self) -> torch.Tensor:
        """Return the gradients as one flat tensor, and free the parameters' gradients.

        Missing gradients are zeros.
        """
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

    def start(self, compression: Any, op: int, process_set: ProcessSet) -> None:
        """Submit the bucket's gradients, and free them."""
        flat, context = compression.compress(self.take_gradients())
        self._restore = lambda values: compression.decompress(values, context)
        self.handle = reducescatter_async(flat, self.name, op, process_set)

    def finish(self) -> torch.Tensor:
        """Wait for the bucket's reduction and return this rank's shard of the result."""
        if self.reduced is None:
            handle, self.handle = self.handle, None
            assert handle is not None
            self.reduced = self._restore(handles.synchronize(handle))
        return self.reduced

    def moved(self) -> bool:
        """Return True if any parameter is no longer a view of this bucket."""
        at, width = self.flat.data_ptr(), self.flat.element_size()
        offsets = zip(self.members, self.layout.offsets, strict=True)
        return any(p.numel() and p.data_ptr() != at + offset * width for p, offset in offsets)


class Slot:
    """A parameter, its bucket, and the handle of its hook."""

    def __init__(self, parameter: torch.Tensor, bucket: Bucket) -> None:
        self.parameter, self.bucket = parameter, bucket
        self.hook: Any = None


class Shards(backward.PassState):
    """All buckets of a sharded optimizer. Implements ``backward.Reducer``.

    The last backward pass before a step reduces the gradients. A bucket is submitted when all its gradients have
    arrived, or at the end of the pass. After the reduction, a status message that is reduced with Max tells each rank
    which parameters have gradients on any rank, and whether a rank has an overflow or a failure.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[torch.Tensor]],
        names: dict[torch.Tensor, str],
        wire: str,
        compression: Any,
        op: int,
        passes: int,
        process_set: ProcessSet,
        tracked: Sequence[torch.Tensor] | None = None,
    ) -> None:
        self.parameters = [p for group in groups for p in group]
        self.names, self.wire, self.process_set = names, wire, process_set
        self.compression, self.op, self.passes, self.tracked = compression, op, passes, tracked
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
        self.gathers = Gathers(self.buckets, process_set, tracked)
        self.owned: list[tuple[Segment, torch.Tensor, Bucket]] = [
            (s, bucket.shard[s.offset : s.offset + s.stop - s.start], bucket)
            for bucket in self.buckets
            for s in bucket.segments
        ]
        self.group_of = of_group
        device = self.parameters[0].device
        # Placeholder parameter for GradScaler. Its gradient becomes infinite if any rank has an overflow, so that
        # GradScaler skips the step on every rank.
        self.guard = torch.zeros(1, device=device)
        self._used: set[torch.Tensor] = set()
        self._in_flight: deque[Bucket] = deque()
        # Handle and tensor of the status message that follows the reduction, or None.
        self._message: tuple[int, torch.Tensor] | None = None
        self._turn = backward.Turn()
        # Number of backward passes since the last step.
        self._ended = 0
        self._job = frontend.job
        self._hooks = backward.Hooks(self)
        # Register hooks on frozen parameters too, because the program can unfreeze them. Registering a hook needs
        # requires_grad=True.
        for bucket in self.buckets:
            for p in bucket.members:
                frozen = not p.requires_grad
                p.requires_grad_(True)
                self._hooks.add(Slot(p, bucket))
                p.requires_grad_(not frozen)
        self.reset()

    @property
    def name(self) -> str:
        """Name of the status message that follows the reduction, which is unique within the job."""
        return f"{self.wire}.used"

    def reset(self) -> None:
        """Discard the gradients of all buckets. Also wait for operations in flight, and ignore their errors."""
        self._leave_pass()
        issued = [bucket.handle for bucket in self.buckets] + [self._message and self._message[0]]
        self._message = None
        for bucket in self.buckets:
            bucket.handle = bucket.reduced = None
            bucket.missing = {p for p in bucket.members if p.requires_grad}
        for _, tensor, _ in self.owned:
            tensor.grad = None
        self.guard.grad = None
        self._used.clear()
        self._in_flight.clear()
        self._ended, self._failed = 0, False
        with contextlib.suppress(Exception):
            handles.synchronize_all([handle for handle in issued if handle is not None])
        self._turn.end_round()

    def close(self) -> None:
        """Remove the hooks. The caller must ensure that no operation is in flight."""
        self._leave_pass()
        self._hooks.remove()

    # -- in a backward pass ------------------------------------------------------------------------------------------

    def on_gradient(self, slot: Slot) -> None:
        """Handle a new gradient. If it completes its bucket, submit the bucket. Hooks call this method."""
        if self._pass is None:
            self._begin_pass()
        if self._turn.thread != get_ident() and not self._turn.is_shared():
            self._failed = True
            raise RuntimeError(backward.TWO_THREADS)
        p, bucket = slot.parameter, slot.bucket
        if bucket.reduced is not None or bucket.handle is not None:
            raise RuntimeError(
                f"backward() computed a gradient of {self.names[p]!r} after its gradients were reduced; call step() or "
                "zero_grad() first, or pass backward_passes_per_step=n to accumulate n passes"
            )
        self._used.add(p)
        if self._ended == self.passes - 1:
            bucket.missing.discard(p)
            if not bucket.missing:
                self._release()
                self._start(bucket)

    def _begin_pass(self) -> None:
        with self._turn.lock:
            self._turn.begin()
            if self._pass is not None:
                return
            self.recover()
            joined = backward.join(self)
            self._pass = joined or backward.no_pass
            if joined is None:
                # The end of this backward pass cannot be detected, so step() reduces the gradients.
                self._turn.end()

    def pass_ended(self) -> bool:
        """Record that a backward pass has ended; see ``backward.Reducer``."""
        self._ended += 1
        due = self._ended == self.passes
        self._end_pass(with_round=due)
        return due

    def pass_failed(self) -> None:
        """Record a failed backward pass; see ``backward.Reducer``.

        Ranks whose pass has succeeded wait for this rank. This rank reports the failure before it waits for any
        operation.
        """
        self._end_pass()
        if self.guard.grad is not None:
            # Do not report this failure to other ranks. The pass failed only because its gradients had already been
            # reduced.
            return
        self._ended += 1
        self._failed = True
        if self._is_due():
            handles.before_next_wait(self.recover)

    def _is_due(self) -> bool:
        return self._ended >= self.passes

    def _end_pass(self, with_round: bool = False) -> None:
        self._pass = None
        self._turn.end(with_round)

    # -- the reduction -----------------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Reduce the gradients that have not been reduced yet.

        Every rank must call this or run the same backward passes.

        Raises:
            HorovodInternalError: If a rank was lost, or its backward pass failed.
        """
        self.recover()
        if self.guard.grad is None:
            self._leave_pass()
            self._round()

    def _round(self) -> None:
        try:
            self.begin()
            self.submit_missing()
            self.finish()
        except Exception:
            self.reset()
            raise

    def begin(self, *, sole_reducer: bool = True) -> None:
        """Submit the remaining buckets; see ``backward.Reducer``."""
        for bucket in self.buckets:
            if bucket.handle is None and bucket.reduced is None:
                self._start(bucket)

    def _start(self, bucket: Bucket) -> None:
        refuse_weights()
        self._in_flight.append(bucket)
        bucket.start(self.compression, self.op, self.process_set)

    def _release(self) -> None:
        """Free the gradients of reduced buckets, waiting for the oldest bucket if many are in flight.

        The wait has a timeout, because another rank may compute gradients in a different order and be waiting for this
        rank.
        """
        while self._in_flight:
            oldest = self._in_flight[0]
            assert oldest.handle is not None
            seconds = _WAIT_SECONDS if len(self._in_flight) >= _MAX_IN_FLIGHT else 0.0
            if not handles.wait_briefly(oldest.handle, seconds):
                return
            self._in_flight.popleft().finish()

    def submit_missing(self, seconds: float = -1.0) -> bool:
        """Send the status message of this step once all buckets have been reduced; see ``backward.Reducer``."""
        for bucket in self._in_flight:
            if bucket.handle is not None and seconds >= 0 and not handles.wait_briefly(bucket.handle, seconds):
                return False
            bucket.finish()
        self._in_flight.clear()
        finite = True
        for bucket in self.buckets:
            values = bucket.finish()
            dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
            finite = finite and bool(values.sum(dtype=dtype).isfinite())
        flags = [float(p in self._used) for p in self.parameters]
        failed = frontend.require_job().rank + 1 if self._failed else 0
        message = torch.tensor([float(failed), float(not finite), *flags], device="cpu")
        self._message = allreduce_async_(message, name=self.name, op=Max, process_set=self.process_set), message
        return True

    def finish(self) -> None:
        """Set the gradients of this rank's elements; see ``backward.Reducer``.

        A gradient is None if no rank has produced it.

        Raises:
            HorovodInternalError: If a backward pass has failed on any rank.
        """
        assert self._message is not None
        (handle, message), self._message = self._message, None
        handles.synchronize(handle)
        failed, overflow, *used = message.tolist()
        if failed:
            raise HorovodInternalError(
                f"backward() failed on rank {int(failed) - 1}, so the gradients that were reduced with it are invalid; "
                "if that rank continues, call zero_grad() before the next backward()"
            )
        self.guard.grad = torch.full_like(self.guard, float("inf") if overflow else 0.0)
        for segment, tensor, bucket in self.owned:
            shard = bucket.finish()
            tensor.grad = shard[segment.offset : segment.offset + tensor.numel()] if used[segment.index] else None
        self._turn.end_round()

    def check_memory(self) -> None:
        """Check that the parameters are still views of the buckets.

        Raises:
            RuntimeError: If a parameter's memory was replaced.
        """
        if any(bucket.moved() for bucket in self.buckets):
            raise RuntimeError(
                "a parameter's memory was replaced after ShardedOptimizer was created, for example by model.to(); "
                "move the model first, then create the optimizer"
            )

    def norm(self) -> torch.Tensor:
        """Return the 2-norm of the gradients over all ranks, as float64."""
        total = torch.zeros(1, dtype=torch.float64, device="cpu")
        for _, tensor, _ in self.owned:
            if tensor.grad is not None:
                total += torch.linalg.vector_norm(tensor.grad, dtype=torch.float64).square().cpu()
        allreduce_(total, name=f"{self.wire}.norm", op=Sum, process_set=self.process_set)
        return total.sqrt()[0]

    def slice(self, segment: Segment, key: str, value: Any) -> Any:
        """Return the slice of the optimizer state entry ``key`` that belongs to ``segment`` of a parameter.

        An entry that does not have one value per element, such as a step count, is copied whole.
        """
        p = self.parameters[segment.index]
        if isinstance(value, torch.Tensor) and value.shape == p.shape and key != "step":
            return value.detach().reshape(-1)[segment.start : segment.stop].to(p.device, copy=True)
        return value.detach().clone() if isinstance(value, torch.Tensor) else value
