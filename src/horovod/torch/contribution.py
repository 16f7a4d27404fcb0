"""A rank's part in a round: its flags, its gradients, and zeros for gradients that only other ranks have.

See gradients.py.
"""

from collections.abc import Sequence

import torch

from horovod.torch import noticing
from horovod.torch.bucketing import APART, DENSE, Bucketing
from horovod.torch.buckets import Bucket, Slot
from horovod.torch.options import Options
from horovod.torch.submissions import Group, Submissions
from horovod.torch.transit import put_aside


class Contribution:
    """Contribution of one optimizer to each round."""

    def __init__(
        self,
        options: Options,
        slots: Sequence[Slot],
        groups: Sequence[Group],
        bucketing: Bucketing,
        on_the_way: Submissions,
    ) -> None:
        self._options = options
        self._slots = slots
        self._groups = groups
        self._bucketing = bucketing
        self._on_the_way = on_the_way
        # This rank's flags.
        self._mine = bytearray()
        # True once the first gradients were sampled for checks.
        self._noticed = False
        # True if parts of buckets or groups are not submitted yet.
        self._parts = False

    def gather(self) -> None:
        """Fill the complete buckets, so that everything that is left can be submitted at once."""
        if not self._noticed:
            self._noticed = True
            named = [(slot.name, slot.parameter.grad) for slot in self._slots]
            noticing.first_gradients(named, self._slots[0].name, self._options.process_set)
        for bucket in self._bucketing.buckets:
            if not (bucket.waiting_for or bucket.gathered):
                bucket.gather(self._on_the_way.alone)

    def flags(self, since: int) -> bytearray:
        """Return this rank's flag for each parameter.

        A flag is 0 without a gradient to reduce, 1 + number of sparse dimensions for a sparse gradient, and otherwise
        the value of ``Bucketing.flag``. Gradients that no backward pass from number ``since`` on has produced count as
        missing.
        """
        flags = bytearray((DENSE,)) * len(self._slots)
        for slot in self._bucketing.apart(self._slots):  # many parameters may be frozen or unused
            flags[slot.index] = 0 if slot.parameter.grad is None else self._flag(slot, since)
        for bucket in self._bucketing.buckets:
            if bucket.waiting_for and not bucket.sent:
                for slot in bucket.members:
                    flags[slot.index] = self._flag(slot, since)
        self._mine = flags
        return flags

    def _flag(self, slot: Slot, since: int) -> int:
        p = slot.parameter
        grad = p.grad
        if grad is None or (slot.seen < since and (slot.hook is not None or not p.requires_grad)):
            return 0
        dense = not grad.is_sparse or self._options.sparse_as_dense or slot.bucket is not None
        return self._bucketing.flag(slot) if dense else 1 + grad.sparse_dim()

    def submit_mine(self) -> bool:
        """Submit what this rank has and has not submitted yet. Return True if everything is then in flight."""
        everything, flags = True, self._mine
        self._parts = False
        for slot in self._bucketing.apart(self._slots):
            if slot.group is None:
                if not flags[slot.index]:
                    everything = False
                elif slot not in self._on_the_way:
                    self._on_the_way.one(slot)
        for bucket in self._bucketing.buckets:
            if not bucket.sent:
                there = sum([flags[slot.index] > 0 for slot in bucket.members])  # a list avoids a call per element
                if there == len(bucket.members):
                    self._on_the_way.bucket(bucket)
                else:
                    everything = False
                    self._parts = self._parts or there > 0
        for group in self._groups:
            if not self._is_pending(group):
                there = sum(flags[slot.index] > 0 for slot in group.members)
                if there == len(group.members):
                    self._on_the_way.group(group)
                else:
                    everything = False
                    self._parts = self._parts or there > 0
        return everything

    def submit_theirs(self, flags: Sequence[int], adds: bool) -> None:
        """Submit gradients that only other ranks have in this round.

        They are zeros, or this rank's old gradient if there is one and ``adds`` is False.

        Args:
            flags: Combined flags of all ranks.
            adds: True if backward adds to existing gradients, which must then be kept out of the reduction.
        """
        if flags == self._mine and not self._parts:
            return  # gradients missing here are missing on all ranks: frozen or unused parameters
        for slot in self._slots:
            flag = flags[slot.index]
            if adds and flag and not self._mine[slot.index]:
                put_aside(slot)
            if flag and slot.bucket is None and slot.group is None and slot not in self._on_the_way:
                fill(slot.parameter, flag)
                self._on_the_way.one(slot)
        for bucket in self._bucketing.buckets:
            if not bucket.sent:
                self._submit_rest_of_bucket(bucket, flags)
        for group in self._groups:
            if not self._is_pending(group) and any(flags[slot.index] for slot in group.members):
                for slot in group.members:
                    if flags[slot.index]:
                        fill(slot.parameter, flags[slot.index])
                missing = [slot for slot in group.members if not flags[slot.index]]
                self._on_the_way.group(group, {slot: torch.zeros_like(slot.parameter) for slot in missing})

    def _submit_rest_of_bucket(self, bucket: Bucket, flags: Sequence[int]) -> None:
        """Submit a bucket that lacks gradients on some rank.

        It is submitted as a whole if other ranks have the missing gradients. Otherwise its gradients are submitted one
        by one, because old gradients in the bucket must not be reduced again.
        """
        there = [slot for slot in bucket.members if flags[slot.index]]
        if len(there) == len(bucket.members):
            self._on_the_way.bucket(bucket)
        elif there:
            bucket.partly_sent += 1
            bucket.look_for_change()
            for slot in there:  # fill all before submitting any: filling may move the bucket to new memory
                bucket.fill(slot)
            for slot in there:
                self._on_the_way.out_of_bucket(slot)

    def _is_pending(self, group: Group) -> bool:
        return any(slot in self._on_the_way for slot in group.members)


def kind_of(grad: torch.Tensor | None) -> int:
    """Return 0 for None, ``DENSE`` for a dense gradient, 1 + k for a sparse one with k sparse dimensions."""
    if grad is None:
        return 0
    return 1 + grad.sparse_dim() if grad.is_sparse else DENSE


def fill(p: torch.Tensor, flag: int) -> None:
    """Give ``p`` a zero gradient of the kind encoded in ``flag`` if it has none."""
    if p.grad is not None:
        return
    if flag in (DENSE, DENSE | APART):
        p.grad = torch.zeros_like(p)
        return
    dims = flag - 1
    indices = torch.empty((dims, 0), dtype=torch.int64, device=p.device)
    values = torch.empty((0, *p.shape[dims:]), dtype=p.dtype, device=p.device)
    p.grad = torch.sparse_coo_tensor(indices, values, p.shape, device=p.device)
