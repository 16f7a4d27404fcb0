"""Submission of gradients to the engine, and storage of the reduced results."""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from horovod._core import WIRE_NONE
from horovod.common.compression import leaves_alone, wire_of
from horovod.common.ops import Average, Max
from horovod.common.process_sets import ProcessSet
from horovod.common.training_loop.observations import training
from horovod.common.training_loop.weights import current
from horovod.torch import monitoring
from horovod.torch.compression import Compression
from horovod.torch.ops import handles, repeats, tracing
from horovod.torch.ops.allgather import sparse_allreduce_async
from horovod.torch.ops.allreduce import submit
from horovod.torch.ops.repeats import Repeat
from horovod.torch.ops.tensors import plain
from horovod.torch.reducer.buckets import Bucket, Slot, is_part


class Residuals:
    """Residuals for error feedback: the compression error of each gradient on this rank, as float32 tensors.

    With error feedback, the error of compressing a gradient in one step is added to the gradient of the next step. The
    engine adds the old error and computes the new one while it encodes the values
    (core/collectives/allreduce_compressed.cc). Sources: F. Seide et al., "1-bit stochastic gradient descent and its
    application to data-parallel distributed training of speech DNNs", Interspeech 2014; S. P. Karimireddy et al.,
    "Error feedback fixes SignSGD and other gradient compression schemes", ICML 2019.

    Residuals are not part of the optimizer's state: they are neither pickled nor in ``state_dict``. A run that resumes
    from a checkpoint starts with zeros, which costs at most one step's rounding error.
    """

    def __init__(self) -> None:
        self._by_key: dict[Any, torch.Tensor] = {}

    def of(self, key: Any, tensor: torch.Tensor) -> torch.Tensor:
        """Return the contiguous residual that belongs to ``tensor`` and has the same size.

        The residual is the compression error of the previous step. It is zero if there was no previous step with this
        key, shape and device.
        """
        residual = self._by_key.get(key)
        if residual is None or residual.shape != tensor.shape or residual.device != tensor.device:
            residual = self._by_key[key] = torch.zeros(tensor.shape, dtype=torch.float32, device=tensor.device)
        return residual

    def clear(self) -> None:
        """Discard all residuals, so that no earlier compression errors are added to gradients."""
        self._by_key.clear()


@dataclass
class Options:
    """Arguments of ``DistributedOptimizer``, already validated."""

    process_set: ProcessSet
    compression: Any = Compression.none
    op: int = Average
    prescale: float = 1.0
    postscale: float = 1.0
    sparse_as_dense: bool = False
    passes: int = 1
    groups: list[list[torch.Tensor]] = field(default_factory=list)
    max_bucketed: int = 0
    """Maximum bytes of a gradient that can share a bucket. 0 on any rank disables buckets on all ranks."""
    restore_sparse: bool = False
    """True to convert gradients that were made dense back to sparse ones."""
    weight: Any = None
    """Weight of this rank's gradients, a function that returns it, or None; see common/training_loop/weights.py."""

    @property
    def makes_dense(self) -> bool:
        """True if sparse gradients are converted to dense ones.

        Ranks that have joined can send zeros for a dense gradient, but cannot take part in the allgather of a sparse
        one.
        """
        return self.sparse_as_dense or current.joins


class Group:
    """Gradients that must be reduced together, as requested by the argument ``groups``."""

    __slots__ = ("members", "waiting_for")

    def __init__(self, members: list[Slot]) -> None:
        self.members = members
        self.waiting_for = len(members)
        for slot in members:
            slot.group = self


def check_unchanged(slot: Slot) -> None:
    """Raise an error if the parameter's gradient was changed or replaced since it was submitted.

    Raises:
        RuntimeError: If the gradient was changed or replaced. The message names the parameter.
    """
    watched = slot.watched
    if watched is None or (slot.parameter.grad is watched and watched._version == slot.version):
        return
    if slot.parameter.grad is not watched or not is_part(watched):
        _refuse_change(slot)


def _refuse_change(slot: Slot) -> NoReturn:
    raise RuntimeError(
        f"gradient {slot.name!r} was changed or replaced while it was being reduced, by a hook, another thread or "
        "another DistributedOptimizer with the same parameter; change gradients after backward() has returned"
    )


def _check(slot: Slot | None, bucket: Bucket | None) -> None:
    """Raise an error if the gradient of ``slot``, or any gradient of ``bucket`` if no slot is given, has changed."""
    if slot is not None:
        check_unchanged(slot)
    if bucket is not None:
        if slot is None:
            bucket.detect_change()
        if bucket.changed is not None:
            _refuse_change(bucket.changed)


def _make_sparse(p: torch.Tensor) -> None:
    """Convert a dense gradient to a sparse tensor that holds only the non-zero rows."""
    if p.grad is not None and not p.grad.is_sparse and p.dim() > 0:
        p.grad = p.grad.detach().to_sparse(1)


def _multiply(grad: torch.Tensor, factor: float) -> None:
    """Scale a dense gradient in place.

    A factor of 0 yields 0 even for a gradient that is NaN.
    """
    # Multiply outside of autograd, so that the tensor's version counter does not change.
    values = grad.data
    if factor:
        values.mul_(factor)
    else:
        values.zero_()


# Initial and maximum interval in steps between samples of gradient norms, and the maximum fraction of the step time
# that sampling can take.
_NOISE_INTERVAL, _MAX_INTERVAL, _NOISE_COST = 16, 4096, 0.005


class Norms:
    """Norms of this rank's dense gradients in one step, before and after averaging."""

    __slots__ = ("_after", "_before", "_grads", "complete", "nanoseconds", "rounds")

    def __init__(self) -> None:
        self._grads: list[torch.Tensor] = []
        self._before: list[torch.Tensor] = []
        self._after: list[torch.Tensor] = []
        self.complete = True
        """False if the norm of a gradient cannot be measured."""
        self.rounds = 0
        """Number of rounds in which gradients were reduced."""
        self.nanoseconds = 0
        """CPU time spent on the norms."""

    def add(self, grad: torch.Tensor) -> None:
        """Record a gradient's norm before the reduction overwrites the gradient."""
        begin = time.thread_time_ns()
        if monitoring.can_be_read(grad):
            self._grads.append(grad)
            self._before.append(_norm(grad))
        else:
            self.complete = False
        self.nanoseconds += time.thread_time_ns() - begin

    def reduced(self) -> None:
        """Record the norms of the gradients after the reduction."""
        if self._grads:
            begin = time.thread_time_ns()
            self._after += map(_norm, self._grads)
            self._grads.clear()
            self.rounds += 1
            self.nanoseconds += time.thread_time_ns() - begin

    def squares(self) -> torch.Tensor:
        """Return the squared norms of this rank's gradient and of the averaged gradient, on the gradients' device."""
        device = self._before[0].device
        both = [[norm.to(device, torch.float64) for norm in norms] for norms in (self._before, self._after)]
        return torch.stack([torch.stack(norms).square().sum() for norms in both])


def _norm(grad: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(
        grad.detach(), dtype=torch.float64 if grad.dtype is torch.float64 else torch.float32
    )


class Submissions:
    """In-flight operations on the gradients of one optimizer."""

    def __init__(self, options: Options) -> None:
        self._options = options
        # Operations in flight, keyed by parameter (Slot), bucket or readiness message. The value is a callback that
        # waits for the result and stores it, or the operation itself (Repeat) if it works in place.
        self._pending: dict[Any, Callable[[], None] | Repeat] = {}
        self._wire = wire_of(options.compression)
        self._residuals = Residuals() if getattr(options.compression, "error_feedback", False) else None
        self._in_place = self._residuals is None and leaves_alone(options.compression)
        self._watched: list[Slot] = []
        self.op = options.op
        """Reduction of gradients: that of the options, or Sum if gradients are weighted."""
        self.factor = 1.0
        """Factor by which gradients are multiplied when they are submitted."""
        self.sole_reducer = False
        """True at the end of a pass without other reducers. The reducer waits next, and gradients do not change."""
        self.norms: Norms | None = None
        """Norms to record in this step, or None."""

    def __contains__(self, key: Any) -> bool:
        return key in self._pending

    def __len__(self) -> int:
        return len(self._pending)

    def exchange_readiness(self, vector: torch.Tensor, name: str) -> Any:
        """Start an in-place allreduce (Max) of a readiness message, and return its Work."""
        repeat = self._pending[vector] = self._submit_in_place(vector, name, Max)
        return repeat.work

    def submit_gradient(self, slot: Slot) -> None:
        """Submit a gradient that belongs to no bucket."""
        p = slot.parameter
        grad = p.grad
        assert grad is not None
        name = "allreduce." + slot.name
        if not grad.is_sparse or self._options.makes_dense:
            if grad.is_sparse:
                p.grad = grad = grad.to_dense()
                self.watch(slot)
            elif slot.watched is None:
                self.watch(slot)
            self._submit(slot, None, grad, name)
            return
        self.watch(slot)
        # If the weight is 0, send no values, because the gradients can be NaN.
        if self.factor != 1.0:
            grad = grad.detach() * self.factor if self.factor else torch.zeros_like(grad)
        wait = sparse_allreduce_async(grad, slot.name, self.op, self._options.process_set)

        def finish() -> None:
            result = wait()
            check_unchanged(slot)
            p.grad = result

        self._pending[slot] = finish

    def submit_group(self, group: Group, stand_ins: dict[Slot, torch.Tensor] | None = None) -> None:
        """Submit the gradients of a group in a single operation.

        ``stand_ins`` contains zeros to submit in place of gradients that are None. Their ``param.grad`` stays None.
        Sparse gradients cannot be part of a group, so they are submitted alone.
        """
        grads = {}
        for slot in group.members:
            p = slot.parameter
            if stand_ins and slot in stand_ins:
                grads[slot] = stand_ins[slot]
            elif p.grad.is_sparse and not self._options.makes_dense:
                self.submit_gradient(slot)
            else:
                if p.grad.is_sparse:
                    p.grad = p.grad.to_dense()
                self.watch(slot)
                grads[slot] = p.grad
        name = f"grouped_allreduce.{group.members[0].name}"
        for i, (slot, grad) in enumerate(grads.items()):
            self._submit(slot, None, grad, f"{name}_{i + 1}of{len(grads)}", name, len(grads))

    def submit_bucket(self, bucket: Bucket) -> None:
        """Submit a bucket as one tensor, after gathering its gradients if necessary."""
        if not bucket.gathered:
            bucket.gather(self.sole_reducer)
        bucket.submitted = True
        bucket.incomplete_steps = 0
        self._submit(None, bucket, bucket.flat, bucket.name)

    def submit_from_bucket(self, slot: Slot) -> None:
        """Submit one gradient of a bucket on its own, using its memory in the bucket."""
        self.watch(slot)
        self._submit(slot, slot.bucket, slot.view, "allreduce." + slot.name)

    def watch(self, slot: Slot) -> None:
        """Store a parameter's gradient and its version counter, to detect changes before the reduction completes."""
        slot.watched = grad = slot.parameter.grad
        slot.version = grad._version  # type: ignore[union-attr]
        self._watched.append(slot)

    def forget_watched(self, reduced: bool) -> None:
        """Stop watching gradients for changes. ``reduced`` is False if the gradients were discarded instead."""
        for slot in self._watched:
            slot.watched = None
            if reduced:
                slot.note_reduced()
        self._watched.clear()

    def _submit(
        self,
        slot: Slot | None,
        bucket: Bucket | None,
        grad: torch.Tensor,
        name: str,
        group: str = "",
        group_size: int = 0,
    ) -> None:
        """Submit a tensor of gradients, which the engine overwrites with the result.

        If ``slot`` is given, ``grad`` is that parameter's dense gradient, and ``bucket`` is the bucket that contains
        it, or None. If ``slot`` is None, ``grad`` is the memory of the whole ``bucket``.
        """
        options = self._options
        key: Any = bucket if slot is None else slot
        if self.factor != 1.0:
            _multiply(grad, self.factor)
        if self.norms is not None:
            self.norms.add(grad)
        if self._in_place and (slot is None or bucket is None):
            # Fast path for most gradients: resubmit the operation of the previous step. It supports only contiguous
            # tensors and no compression.
            repeat_key = (name, group_size, self._wire)
            again = self._submit_again(repeat_key, grad, self.op, options.prescale, options.postscale)
            if again is not None:
                self._pending[key] = again
                return
        grad = grad.detach()
        tensor, context = options.compression.compress(grad)
        # Make the tensor contiguous before sending, because ranks may use different memory formats, such as channels
        # last.
        tensor = plain(tensor)
        residual = self._residuals.of(key, tensor) if self._residuals is not None else None
        repeat = self._submit_in_place(
            tensor, name, self.op, options.prescale, options.postscale, group, group_size, self._wire, residual
        )

        def finish() -> None:
            if residual is None:
                handles.wait_for(repeat, tensor)
            else:
                handles.wait(repeat.work, (tensor, residual))
            _check(slot, bucket)
            result = options.compression.decompress(tensor, context)
            if result is not grad:
                grad.copy_(result)
            if bucket is not None:
                bucket.store_result(slot)

        self._pending[key] = finish

    def _submit_in_place(
        self,
        tensor: torch.Tensor,
        name: str,
        op: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
        group: str = "",
        group_size: int = 0,
        wire: int = WIRE_NONE,
        residual: torch.Tensor | None = None,
    ) -> Repeat:
        """Start an in-place allreduce of ``tensor``.

        The Work of the previous step is reused if possible. With a residual, a new Work is created, because a reused
        one would keep the residual's memory alive.

        Returns:
            The operation, which can be submitted again.
        """
        process_set = self._options.process_set
        # Use a tuple as the key, because it cannot collide with a user-supplied name.
        key = (name, group_size, wire)
        repeat = self._submit_again(key, tensor, op, prescale, postscale) if residual is None else None
        if repeat is not None:
            return repeat
        arguments = (name, op, prescale, postscale, process_set, group, group_size)
        work = submit(tensor, tensor, *arguments, wire=wire, residual=residual)
        if tracing.state._is_profiler_enabled:
            tracing.record_submission(work)
        return repeats.create(work, key, tensor, op, prescale, postscale, process_set)

    def _submit_again(
        self, key: Any, tensor: torch.Tensor, op: int, prescale: float, postscale: float
    ) -> Repeat | None:
        """Reduce ``tensor`` in place with the operation of the previous step, or return None if none matches."""
        process_set, waits = self._options.process_set, self.sole_reducer
        repeat = repeats.submit(key, tensor, tensor, op, prescale, postscale, process_set, waits)
        if repeat is not None and tracing.state._is_profiler_enabled:
            tracing.record_submission(repeat.work)
        return repeat

    def _await(self, key: Any, pending: Callable[[], None] | Repeat) -> None:
        if not isinstance(pending, Repeat):
            pending()
            return
        handles.wait_for(pending, key)
        if isinstance(key, Slot):
            check_unchanged(key)
        elif isinstance(key, Bucket):
            _check(None, key)
            key.store_result(None)

    def finish(self) -> None:
        """Wait for all operations in flight, even if one fails, then raise the first error."""
        failure: Exception | None = None
        with torch.no_grad():
            while self._pending:
                # Remove the entries one by one, so that after an interrupt the remaining entries still keep their
                # memory alive.
                key = next(iter(self._pending))
                try:
                    self._await(key, self._pending[key])
                    if self._options.restore_sparse and isinstance(key, Slot):
                        _make_sparse(key.parameter)
                except Exception as error:
                    failure = failure or error
                del self._pending[key]
        self.sole_reducer = False
        if failure is not None:
            self.norms = None
            raise failure
        if self.norms is not None:
            self.norms.reduced()

    @property
    def can_measure_noise(self) -> bool:
        """True if each result is the average of one backward pass per rank, with equal weights."""
        return self.op == Average and self._options.passes == 1 and self._in_place

    def forget(self) -> None:
        """Wait for operations in flight, ignoring their errors, and discard the compression residuals."""
        with contextlib.suppress(Exception):
            self.finish()
        if self._residuals is not None:
            self._residuals.clear()


class NoiseSampler:
    """Sampler of gradient norms of one optimizer, from which rank 0 estimates the gradient noise scale.

    Every 16th step is sampled, or a smaller fraction if sampling takes more than 0.5% of the time. Each rank chooses
    its own interval. A step counts if all ranks sample it.
    """

    __slots__ = ("_interval", "_last")

    def __init__(self) -> None:
        self._interval = _NOISE_INTERVAL
        # Time in nanoseconds at which the last sample was taken.
        self._last = 0

    def after_step(self, submissions: Submissions, of: str, process_set: ProcessSet, steps: int) -> None:
        """After a step, record a sample of gradient norms if one is due, or request one for the next step."""
        phase = steps % self._interval
        if phase == self._interval - 1:
            if training.watched and submissions.can_measure_noise and not monitoring.is_capturing():
                submissions.norms = Norms()
        elif phase == 0 and submissions.norms is not None:
            norms, submissions.norms = submissions.norms, None
            if norms.complete and norms.rounds == 1 and submissions.can_measure_noise:
                self._send(norms, of, process_set.ranks or (), steps)

    def _send(self, norms: Norms, of: str, ranks: Sequence[int], steps: int) -> None:
        begin, now = time.thread_time_ns(), time.perf_counter_ns()
        squares = norms.squares()
        copy = squares.to("cpu", non_blocking=squares.is_cuda)

        def send() -> None:
            local, averaged = copy.tolist()
            training.tell("noise", of, ranks, steps, local=local, averaged=averaged, batch=monitoring.batches.size)

        monitoring.send_later(send, [squares])
        spent = norms.nanoseconds + time.thread_time_ns() - begin
        if self._last and spent > _NOISE_COST * (now - self._last):
            self._interval = min(2 * self._interval, _MAX_INTERVAL)
        self._last = now
