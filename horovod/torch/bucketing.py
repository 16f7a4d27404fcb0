"""Which gradients share buckets, as it is decided while training goes on.

Gradients go alone at first. After each step all ranks know the outcome of the flags (gradients.py): which gradients
there were, and which of them no rank wants to have apart. From that alone, and from the order in which rank 0's
gradients arrived, follows who shares a bucket from the next step on; so all ranks decide alike.
"""

from collections.abc import Sequence

import torch

from horovod.common.process_sets import ProcessSet
from horovod.common.state import state
from horovod.torch.bucket_plan import plan
from horovod.torch.buckets import Bucket, Slot
from horovod.torch.ops.broadcast import broadcast_
from horovod.torch.ops.tensors import CODES

DENSE = 1
"""Flag of a dense gradient that may share a bucket."""

APART = 0x80
"""In a flag: this dense gradient cannot share a bucket on this rank."""

EVERYTHING = 1 << 62
"""As ``most``: gradients of every size share buckets."""

_PATIENCE = 3  # steps in a row that a bucket may lack gradients on all ranks before it is given up
_MOST_MOVES = 2  # how often a gradient's bucket may be given up before the gradient goes alone for good


class Bucketing:
    """The buckets of one optimizer."""

    def __init__(self, most: int, process_set: ProcessSet) -> None:
        """``most``: bytes of the largest gradient that shares a bucket; 0: there are no buckets."""
        self.most = most
        self.buckets: list[Bucket] = []
        self.arrived: list[Slot] = []
        """Of the gradients that go alone in this step those that a backward pass made, in the order they came."""
        self._process_set = process_set
        self._settled: list[int] = []  # the outcome of the step before, if it led to no new bucket

    def flag(self, slot: Slot) -> int:
        """The flag of a slot with a dense gradient."""
        if slot.bucket is not None:
            return DENSE
        p = slot.parameter
        may_share = (
            0 < p.numel() * p.element_size() <= self.most
            and slot.group is None
            and slot.moves < _MOST_MOVES
            and p.dtype in CODES
            and p.is_cpu
            and p.is_contiguous()
            and p.grad is not None
            and p.grad.dtype is p.dtype
            and not p.grad.requires_grad
        )
        return DENSE if may_share else DENSE | APART

    def restart(self) -> None:
        """Gets ready for the next step."""
        self.arrived.clear()
        for bucket in self.buckets:
            bucket.restart()

    def drop_outdated(self) -> None:
        """Gives up the buckets of another job: a rank that is new in this one does not have them."""
        for bucket in [b for b in self.buckets if b.job is not state.job]:
            self._give_up(bucket)
            for slot in bucket.members:
                slot.moves = 0

    def rearrange(self, slots: Sequence[Slot], outcome: list[int]) -> None:
        """Makes and gives up buckets. To be called by all ranks after a step in which no reduction failed.

        ``outcome``: for each slot the flag, the largest of all ranks', and one more: 1 if a rank wants no buckets.
        Raises HorovodInternalError when a peer is lost.
        """
        for bucket in [b for b in self.buckets if b.partly_sent >= _PATIENCE]:
            self._give_up(bucket)
        if outcome[-1] or outcome == self._settled:
            return
        candidates = [slot for slot in slots if slot.bucket is None and outcome[slot.index] == DENSE]
        if not candidates:
            self._settled = outcome
            return
        self._settled = []
        for members in plan([slot.shape for slot in candidates], self._agree_on_order(candidates)):
            slots_of_bucket = [candidates[i] for i in members]
            # A name that no other operation can have: those begin with their kind.
            name = f"gradients.bucket.{slots_of_bucket[0].name}"
            self.buckets.append(Bucket(name, slots_of_bucket, state.job))

    def _agree_on_order(self, candidates: Sequence[Slot]) -> list[int]:
        """Positions in ``candidates`` as their gradients arrived at the set's first rank; without those that a backward
        pass made, the last first."""
        position = {slot.index: i for i, slot in enumerate(candidates)}
        came = [position[slot.index] for slot in self.arrived if slot.index in position]
        late = sorted(set(range(len(candidates))) - set(came), reverse=True)
        order = torch.tensor([*came, *late])
        ranks = self._process_set.ranks
        assert ranks
        broadcast_(order, ranks[0], f"gradients.order.{candidates[0].name}", self._process_set)
        return [int(i) for i in order.tolist()]

    def _give_up(self, bucket: Bucket) -> None:
        self.buckets.remove(bucket)
        self._settled = []
        bucket.give_up()
