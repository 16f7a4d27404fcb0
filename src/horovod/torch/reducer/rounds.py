"""One rank's contribution to a reduction round, and the choice of buckets.

``Contribution`` computes this rank's flags, and submits its gradients and zeros for gradients that only other ranks
have. ``Bucketing`` chooses the buckets. In the first round each gradient is reduced alone. After each round all ranks
know the combined flags: which gradients exist, and which of them every rank allows in buckets. The buckets of the next
round depend only on these flags and on the order in which rank 0's gradients arrived, so all ranks choose the same
buckets.

Gradients that already exist when a backward pass adds to them must not be reduced again. A program can run several
backward passes before it resets gradients, for several losses or to accumulate gradients. The results of earlier passes
are already reduced, so only the values that the new pass adds must be reduced. With Average, reducing everything again
is correct too, because the average of equal values is the same value; DDP does the same. With other operations, the old
values are moved aside before autograd adds to them, and are added to the result later.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from horovod.common.frontends import TORCH as frontend
from horovod.common.ops import Sum
from horovod.common.process_sets import ProcessSet
from horovod.common.training_loop.gradients import BucketSizes, bucket_tuning
from horovod.torch import monitoring
from horovod.torch.ops import devices, handles
from horovod.torch.ops.allreduce import submit
from horovod.torch.ops.tensors import CODES
from horovod.torch.reducer.agreement import Gradient, plan
from horovod.torch.reducer.buckets import Bucket, Slot
from horovod.torch.reducer.submissions import Group, Options, Submissions

DENSE = 1
"""Flag of a dense gradient that can share a bucket."""

SEPARATE = 0x80
"""Bit that is set in the flag of a dense gradient that cannot share a bucket on this rank."""

EVERYTHING = 1 << 62
"""Value of ``max_bytes`` that lets gradients of every size share buckets."""

# Number of header values in a proposal message, whose values are summed over the ranks. The header is a 1, which counts
# the participating ranks, and the two bucket sizes that rank 0 requests (zeros for no request).
_HEAD = 3
# A bucket is broken up after this many consecutive steps in which some of its gradients were missing on all ranks.
_PATIENCE = 3
# Maximum number of times that a gradient's bucket is dissolved because of missing gradients or a changed dtype. After
# that, the gradient is always reduced separately.
_MAX_MOVES = 2


@dataclass
class _Proposal:
    """Proposal to change which gradients share a bucket, sent to all ranks for agreement."""

    work: Any
    message: torch.Tensor
    slots: int
    candidates: list[tuple[Slot, Gradient]]
    buckets: list[Bucket]
    job: Any


class Bucketing:
    """Buckets of one optimizer's gradients. They can change between reduction rounds."""

    def __init__(self, max_bytes: int, process_set: ProcessSet) -> None:
        """Start without any buckets. Only gradients of up to ``max_bytes`` bytes can share a bucket."""
        self.max_bytes = max_bytes
        # True if autotune can change the bucket sizes, because the program has not set them itself.
        self._tunable = max_bytes == BucketSizes().small
        bucket_tuning.used |= self._tunable
        self._sizes = BucketSizes()
        self.arrived: list[Slot] = []
        """Gradients outside of buckets that backward has produced in this round, in order of arrival."""
        self._buckets: list[Bucket] = []
        # Cached list of the parameters that are in no bucket, as returned by ``unbucketed``.
        self._unbucketed: list[Slot] | None = None
        # Number of gradients outside of buckets that backward had produced when the last reduction round ended.
        self._arrived_last = 0
        self._process_set = process_set
        # Combined flags of the last reduction round, or empty if the buckets have changed since.
        self._settled: Sequence[int] = []
        self._proposal: _Proposal | None = None

    @property
    def buckets(self) -> list[Bucket]:
        """All buckets of the optimizer. Reading this property first applies any pending change of buckets."""
        self.settle()
        return self._buckets

    def unbucketed(self, slots: list[Slot]) -> list[Slot]:
        """Return the parameters that are in no bucket. ``slots`` must contain all parameters of the optimizer."""
        self.settle()
        if self._unbucketed is None:
            self._unbucketed = [slot for slot in slots if slot.bucket is None]
        return self._unbucketed

    def expects_more(self) -> bool:
        """Return True if backward will probably produce more gradients, judging by the last round.

        If not, the pass is about to end, and submitting at its end is cheaper: the program then waits and runs the
        progress loop itself, so the engine's thread stays asleep.
        """
        if len(self.arrived) < self._arrived_last:
            return True
        return any(bucket.waiting_for for bucket in self._buckets)

    def changed(self) -> None:
        """Clear the cached list of parameters outside of buckets. Call this when parameters or buckets have changed."""
        self._unbucketed = None

    def flag(self, slot: Slot) -> int:
        """Return the flag of a dense gradient, which tells other ranks whether the gradient can share a bucket."""
        if slot.bucket is not None:
            return DENSE
        p = slot.parameter
        may_share = (
            0 < p.numel() * p.element_size() <= self.max_bytes
            and slot.group is None
            and slot.moves < _MAX_MOVES
            and p.dtype in CODES
            and (p.is_cpu or devices.accepts(p))
            and p.is_contiguous()
            and p.grad is not None
            and p.grad.dtype is p.dtype
            and not p.grad.requires_grad
        )
        return DENSE if may_share else DENSE | SEPARATE

    def restart(self) -> None:
        """Reset the state at the start of a reduction round."""
        self._arrived_last = len(self.arrived)
        self.arrived.clear()
        for bucket in self._buckets:
            bucket.restart()

    def drop_outdated(self) -> None:
        """Break up the buckets of the previous job, because new ranks do not have them."""
        if self._proposal is not None and self._proposal.job is not frontend.job:
            self._proposal = None
        self._use(BucketSizes())
        for bucket in [b for b in self._buckets if b.job is not frontend.job]:
            self._dissolve(bucket)
            for slot in bucket.members:
                slot.moves = 0

    def wishes(self) -> list[int]:
        """Return two flags of this rank: 1 if it disables buckets, and 1 if it wants to dissolve any bucket."""
        dissolves = self._resizes() or any(self._should_dissolve(bucket) for bucket in self._buckets)
        return [int(self.max_bytes == 0), int(dissolves)]

    def _resizes(self) -> bool:
        """Return True if autotune has requested other bucket sizes. Only rank 0 ever returns True."""
        return self._tunable and bucket_tuning.requested not in (None, self._sizes)

    def _use(self, sizes: BucketSizes) -> None:
        self._sizes = sizes
        if self._tunable:
            self.max_bytes = sizes.small

    def propose(self, slots: Sequence[Slot], flags: Sequence[int]) -> None:
        """Propose to the other ranks which gradients share a bucket. ``settle`` applies the change later.

        All ranks must call this after each successful round. The call does not block, because ranks may complete the
        rounds of several optimizers in different orders.

        Args:
            slots: All parameters of the optimizer.
            flags: Maximum over all ranks of each parameter's flag, then of the flags from ``wishes``.
        """
        refused, dissolving = flags[-2:]
        if refused or not (dissolving or self._has_changed(slots, flags)):
            return
        count = len(slots)
        message = torch.zeros(_HEAD + count + len(self._buckets), dtype=torch.int64, device="cpu")
        message[0] = 1
        if self._resizes():
            message[1:_HEAD] = torch.tensor(bucket_tuning.requested)
        if self._process_set.rank() == 0:
            for place, slot in enumerate(self.arrived, 1):
                message[_HEAD + slot.index] = place
        for i, bucket in enumerate(self._buckets):
            message[_HEAD + count + i] = self._should_dissolve(bucket)
        name = f"gradients.order.{slots[0].name}"
        work = submit(message, message, name, Sum, 1.0, 1.0, self._process_set)
        # Keep the tensor alive in case the optimizer is deleted before the operation completes.
        handles.park(work, message)
        candidates = [(slot, slot.shape) for slot in self._candidates(slots, flags)]
        self._proposal = _Proposal(work, message, count, candidates, list(self._buckets), frontend.job)

    def settle(self) -> None:
        """Wait until the ranks have agreed on any pending change of buckets, and apply it before the next round.

        Raises:
            HorovodInternalError: If a rank was lost.
        """
        proposal, self._proposal = self._proposal, None
        if proposal is None:
            return
        handles.wait(proposal.work, proposal.message)
        present, bucket_bytes, small_bytes, *rest = (int(n) for n in proposal.message.tolist())
        # Change buckets only if all ranks take part, because a rank that has called ``hvd.join()`` would not learn of
        # the new buckets.
        if present < len(self._process_set.ranks or ()):
            return
        if bucket_bytes:
            self._resize(BucketSizes(bucket_bytes, small_bytes), proposal.buckets)
            return
        # `arrival[i]` is the 1-based position at which parameter i's gradient arrived on the process set's first rank,
        # or 0 if it did not arrive. `wishes[i]` is the number of ranks that want to dissolve bucket i.
        arrival, wishes = rest[: proposal.slots], rest[proposal.slots :]
        # Break up the buckets that a rank wants to dissolve. In the next round, their gradients are reduced separately,
        # and their flags in that round determine whether they can share a bucket again.
        for bucket, wish in zip(proposal.buckets, wishes, strict=True):
            if wish:
                self._dissolve(bucket)
        # Sort gradients by arrival. Put those that did not arrive at the end, from the last parameter to the first.
        candidates = sorted(
            proposal.candidates, key=lambda entry: (arrival[entry[0].index] or proposal.slots + 1, -entry[0].index)
        )
        shapes = [shape for _, shape in candidates]
        for members in plan(shapes, range(len(candidates)), self._sizes.first, self._sizes.bucket):
            slots_of_bucket = [candidates[i][0] for i in members]
            # No other operation can have this name, because all other names begin with a kind such as "allreduce.".
            name = f"gradients.bucket.{slots_of_bucket[0].name}"
            self._buckets.append(Bucket(name, slots_of_bucket, candidates[members[0]][1], frontend.job))
        self.changed()

    def _resize(self, sizes: BucketSizes, buckets: Sequence[Bucket]) -> None:
        """Change the bucket sizes and break up all buckets.

        The next round reduces each gradient separately and then chooses new buckets.
        """
        self._use(sizes)
        for bucket in buckets:
            self._dissolve(bucket)
            for slot in bucket.members:
                # Undo the increment of `moves` made by `Bucket.dissolve`, because a change of bucket sizes does not
                # count towards the limit _MAX_MOVES.
                slot.moves -= 1
        self._settled = []

    def _has_changed(self, slots: Sequence[Slot], flags: Sequence[int]) -> bool:
        if flags == self._settled:
            return False
        self._settled = [] if self._candidates(slots, flags) else flags
        return not self._settled

    def _candidates(self, slots: Sequence[Slot], flags: Sequence[int]) -> list[Slot]:
        return [slot for slot in slots if slot.bucket is None and flags[slot.index] == DENSE]

    def _should_dissolve(self, bucket: Bucket) -> bool:
        return bucket.kind_changed or bucket.incomplete_steps >= _PATIENCE

    def _dissolve(self, bucket: Bucket) -> None:
        self._buckets.remove(bucket)
        self._settled = []
        self.changed()
        bucket.dissolve()


def set_accumulated_aside(slot: Slot) -> None:
    """Save a parameter's current gradient in ``slot.accumulated``, and clear ``param.grad``."""
    p = slot.parameter
    grad = p.grad
    if grad is not None and slot.accumulated is None:
        # Copy a gradient that is in a bucket, because the new gradient will overwrite the same memory.
        slot.accumulated = grad.detach().clone() if grad is slot.view else grad
        p.grad = None


def add_accumulated(slot: Slot) -> None:
    """Add the gradient saved by ``set_accumulated_aside`` to the result in ``param.grad``.

    Unless the result is in a bucket, ``param.grad`` is again the saved tensor, to which the result is added in place.
    Autograd accumulates gradients in the same way.
    """
    before, slot.accumulated = slot.accumulated, None
    p = slot.parameter
    result = p.grad
    if before is None:
        return
    if result is None:
        p.grad = before
    elif before.is_sparse:
        # Put `result` first. `before` is sparse, and PyTorch can add a sparse tensor to a dense one, but not a dense
        # tensor to a sparse one.
        p.grad = result.detach() + before.detach()
    elif result is slot.view or result.requires_grad:
        result.detach().add_(before.detach())
    else:
        before.detach().add_(result)
        p.grad = before


class Contribution:
    """This rank's contribution to each reduction round of one optimizer: its flags and its gradients."""

    def __init__(
        self,
        options: Options,
        slots: Sequence[Slot],
        groups: Sequence[Group],
        bucketing: Bucketing,
        in_flight: Submissions,
    ) -> None:
        self._options = options
        self._slots = slots
        self._groups = groups
        self._bucketing = bucketing
        self._in_flight = in_flight
        # This rank's flags for the current round, one byte per parameter.
        self._flags = bytearray()
        # True once the first gradients have been sampled for monitoring.
        self._first_sampled = False
        # True if some bucket or group is not submitted yet because this rank lacks some of its gradients.
        self._has_partial = False

    def gather(self) -> None:
        """Copy gradients into each bucket whose gradients have all arrived, without submitting the bucket."""
        if not self._first_sampled:
            self._first_sampled = True
            named = [(slot.name, slot.parameter.grad) for slot in self._slots]
            monitoring.first_gradients(named, self._slots[0].name, self._options.process_set)
        for bucket in self._bucketing.buckets:
            if not (bucket.waiting_for or bucket.gathered):
                bucket.gather(self._in_flight.sole_reducer)

    def flags(self, since: int) -> bytearray:
        """Return one flag for each parameter, which describes this rank's gradient.

        A flag is 0 if there is no gradient to reduce, 1 + the number of sparse dimensions for a sparse gradient, and
        the value of ``Bucketing.flag`` for a dense one. A gradient counts as missing if the last backward pass that
        produced it has a number less than ``since``.
        """
        flags = bytearray((DENSE,)) * len(self._slots)
        # Check for None first, because many parameters can be frozen or unused, and the check is fast.
        for slot in self._bucketing.unbucketed(self._slots):
            flags[slot.index] = 0 if slot.parameter.grad is None else self._flag(slot, since)
        for bucket in self._bucketing.buckets:
            if bucket.waiting_for and not bucket.submitted:
                for slot in bucket.members:
                    flags[slot.index] = self._flag(slot, since)
        self._flags = flags
        return flags

    def _flag(self, slot: Slot, since: int) -> int:
        p = slot.parameter
        grad = p.grad
        if grad is None or (slot.last_pass < since and (slot.hook is not None or not p.requires_grad)):
            return 0
        dense = not grad.is_sparse or self._options.makes_dense or slot.bucket is not None
        return self._bucketing.flag(slot) if dense else 1 + grad.sparse_dim()

    def submit_local(self) -> bool:
        """Submit this rank's remaining gradients. Return True if all gradients are in flight afterwards."""
        everything, flags = True, self._flags
        self._has_partial = False
        for slot in self._bucketing.unbucketed(self._slots):
            if slot.group is None:
                if not flags[slot.index]:
                    everything = False
                elif slot not in self._in_flight:
                    self._in_flight.submit_gradient(slot)
        for bucket in self._bucketing.buckets:
            if bucket.submitted:
                continue
            # Count only if some gradient is missing. The sum of a list is faster than that of a generator.
            missing = bucket.waiting_for and sum([not flags[slot.index] for slot in bucket.members])  # noqa: C419
            if not missing:
                self._in_flight.submit_bucket(bucket)
            else:
                everything = False
                self._has_partial = self._has_partial or missing < len(bucket.members)
        for group in self._groups:
            if not self._is_pending(group):
                present = sum(flags[slot.index] > 0 for slot in group.members)
                if present == len(group.members):
                    self._in_flight.submit_group(group)
                else:
                    everything = False
                    self._has_partial = self._has_partial or present > 0
        return everything

    def submit_missing(self, flags: Sequence[int], accumulates: bool) -> None:
        """Take part in the reduction of gradients that only other ranks have produced in this round.

        This rank submits zeros, or the gradient of an earlier round if one exists and ``accumulates`` is False.

        Args:
            flags: Combined flags of all ranks.
            accumulates: True if gradients of earlier rounds must not be reduced again.
        """
        if flags == self._flags and not self._has_partial:
            # Nothing is left to submit. The gradients that this rank lacks belong to frozen or unused parameters, and
            # all other ranks lack them too.
            return
        for slot in self._slots:
            flag = flags[slot.index]
            if accumulates and flag and not self._flags[slot.index]:
                set_accumulated_aside(slot)
            if flag and slot.bucket is None and slot.group is None and slot not in self._in_flight:
                fill(slot.parameter, flag)
                self._in_flight.submit_gradient(slot)
        for bucket in self._bucketing.buckets:
            if not bucket.submitted:
                self._submit_rest_of_bucket(bucket, flags)
        for group in self._groups:
            if not self._is_pending(group) and any(flags[slot.index] for slot in group.members):
                for slot in group.members:
                    if flags[slot.index]:
                        fill(slot.parameter, flags[slot.index])
                missing = [slot for slot in group.members if not flags[slot.index]]
                self._in_flight.submit_group(group, {slot: torch.zeros_like(slot.parameter) for slot in missing})

    def _submit_rest_of_bucket(self, bucket: Bucket, flags: Sequence[int]) -> None:
        """Submit a bucket of which this rank lacks some gradients.

        If other ranks have every gradient that this rank lacks, the bucket is submitted as a whole. If some gradients
        are missing on all ranks, the others are submitted one by one, because the old values in the gaps must not be
        reduced again.
        """
        present = [slot for slot in bucket.members if flags[slot.index]]
        if len(present) == len(bucket.members):
            self._in_flight.submit_bucket(bucket)
        elif present:
            bucket.incomplete_steps += 1
            bucket.detect_change()
            # Make all of these gradients views of the bucket before submitting any, because `fill` can move the bucket
            # to new memory.
            for slot in present:
                bucket.fill(slot)
            for slot in present:
                self._in_flight.submit_from_bucket(slot)

    def _is_pending(self, group: Group) -> bool:
        return any(slot in self._in_flight for slot in group.members)


def kind_of(grad: torch.Tensor | None) -> int:
    """Encode the kind of a gradient: 0 for None, ``DENSE``, or 1 + k for a sparse one with k sparse dimensions."""
    if grad is None:
        return 0
    return 1 + grad.sparse_dim() if grad.is_sparse else DENSE


def fill(p: torch.Tensor, flag: int) -> None:
    """If ``p`` has no gradient, set it to zeros. ``flag`` encodes whether they are dense or sparse (``kind_of``)."""
    if p.grad is not None:
        return
    if flag in (DENSE, DENSE | SEPARATE):
        p.grad = torch.zeros_like(p)
        return
    dims = flag - 1
    indices = torch.empty((dims, 0), dtype=torch.int64, device=p.device)
    values = torch.empty((0, *p.shape[dims:]), dtype=p.dtype, device=p.device)
    p.grad = torch.sparse_coo_tensor(indices, values, p.shape, device=p.device)
