"""Which gradients share buckets, as it is decided while training goes on.

Gradients go alone at first. After each round all ranks know the outcome of the flags (gradients.py): which gradients
there were, and which of them no rank wants to have apart. From that alone, and from the order in which rank 0's
gradients arrived, follows who shares a bucket from the next round on; so all ranks decide alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from horovod.common.faces import TORCH as face
from horovod.common.ops import Sum
from horovod.common.process_sets import ProcessSet
from horovod.torch.bucket_plan import Gradient, plan
from horovod.torch.buckets import Bucket, Slot
from horovod.torch.ops import devices, handles
from horovod.torch.ops.allreduce import submit
from horovod.torch.ops.tensors import CODES

DENSE = 1
"""Flag of a dense gradient that may share a bucket."""

APART = 0x80
"""In a flag: this dense gradient cannot share a bucket on this rank."""

EVERYTHING = 1 << 62
"""As ``most``: gradients of every size share buckets."""

_PATIENCE = 3  # steps in a row that a bucket may lack gradients on all ranks before it is given up
# How often a gradient's bucket may be given up, for gradients that were missing or a dtype that changed, before the
# gradient goes alone for good.
_MOST_MOVES = 2


@dataclass
class _Proposal:
    """What the ranks are about to agree on."""

    work: Any
    message: torch.Tensor
    slots: int
    candidates: list[tuple[Slot, Gradient]]
    buckets: list[Bucket]
    job: Any


class Bucketing:
    """The buckets of one optimizer."""

    def __init__(self, most: int, process_set: ProcessSet) -> None:
        """``most``: bytes of the largest gradient that shares a bucket; 0: there are no buckets."""
        self.most = most
        self.arrived: list[Slot] = []
        """Of the gradients that go alone in this round those that a backward pass made, in the order they came."""
        self._buckets: list[Bucket] = []
        self._apart: list[Slot] | None = None  # see ``apart``
        self._arrived_last = 0  # in the last round: how many in ``arrived``
        self._process_set = process_set
        self._settled: Sequence[int] = []  # the outcome of the round before, if it led to no new bucket
        self._proposal: _Proposal | None = None

    @property
    def buckets(self) -> list[Bucket]:
        """All buckets, with what has been proposed; see ``settle``."""
        self.settle()
        return self._buckets

    def apart(self, slots: list[Slot]) -> list[Slot]:
        """Those of ``slots``, all of the optimizer's, that are in no bucket."""
        self.settle()
        if self._apart is None:
            self._apart = [slot for slot in slots if slot.bucket is None]
        return self._apart

    def expects_more(self) -> bool:
        """Will backward make more gradients, if it makes those that it made in the last round? If not, its end comes
        now, and what is not on its way is submitted then: the program waits right after it, and the engine's thread
        need not be woken."""
        if len(self.arrived) < self._arrived_last:
            return True
        return any(bucket.waiting_for for bucket in self._buckets)

    def changed(self) -> None:
        """There are more slots, or other buckets, than there were."""
        self._apart = None

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
            and (p.is_cpu or devices.accepts(p))
            and p.is_contiguous()
            and p.grad is not None
            and p.grad.dtype is p.dtype
            and not p.grad.requires_grad
        )
        return DENSE if may_share else DENSE | APART

    def restart(self) -> None:
        """Gets ready for the next round."""
        self._arrived_last = len(self.arrived)
        self.arrived.clear()
        for bucket in self._buckets:
            bucket.restart()

    def drop_outdated(self) -> None:
        """Gives up the buckets of another job: a rank that is new in this one does not have them."""
        if self._proposal is not None and self._proposal.job is not face.job:
            self._proposal = None
        for bucket in [b for b in self._buckets if b.job is not face.job]:
            self._give_up(bucket)
            for slot in bucket.members:
                slot.moves = 0

    def wishes(self) -> list[int]:
        """What this rank adds to the flags: 1 if it wants no buckets, 1 if it has one that is to be given up."""
        return [int(self.most == 0), int(any(self._is_tired(bucket) for bucket in self._buckets))]

    def propose(self, slots: Sequence[Slot], outcome: Sequence[int]) -> None:
        """Begins to make and give up buckets, which ``settle`` does. To be called by all
        ranks after a round in which no reduction failed. Does not wait: ranks end rounds of several optimizers in
        whatever order.

        ``outcome``: for each slot the flag, then ``wishes``; the largest of all ranks'.
        """
        refused, tired = outcome[-2:]
        if refused or not (tired or self._has_news(slots, outcome)):
            return
        count = len(slots)
        message = torch.zeros(1 + count + len(self._buckets), dtype=torch.int64, device="cpu")
        message[0] = 1
        if self._process_set.rank() == 0:
            for place, slot in enumerate(self.arrived, 1):
                message[1 + slot.index] = place
        for i, bucket in enumerate(self._buckets):
            message[1 + count + i] = self._is_tired(bucket)
        name = f"gradients.order.{slots[0].name}"
        work = submit(message, message, name, Sum, 1.0, 1.0, self._process_set)
        handles.park(work, message)  # should the optimizer go before it is done
        candidates = [(slot, slot.shape) for slot in self._candidates(slots, outcome)]
        self._proposal = _Proposal(work, message, count, candidates, list(self._buckets), face.job)

    def settle(self) -> None:
        """Waits for what has been proposed and does it. To be called before gradients are looked at in the next round.
        Raises HorovodInternalError when a peer is lost."""
        proposal, self._proposal = self._proposal, None
        if proposal is None:
            return
        handles.wait(proposal.work, proposal.message)
        present, *rest = (int(n) for n in proposal.message.tolist())
        # A rank that does not take part, because it has joined (``hvd.join``), would not know of what is decided now.
        if present < len(self._process_set.ranks or ()):
            return
        # By slot the place in the order in which the gradients of the set's first rank came, from 1 on, 0 for those
        # that did not; and for each bucket how many ranks want to give it up.
        came, votes = rest[: proposal.slots], rest[proposal.slots :]
        # Those that are given up go alone in the next round at least: its flags say whether they may share again.
        for bucket, wish in zip(proposal.buckets, votes, strict=True):
            if wish:
                self._give_up(bucket)
        # As they came; then those that no backward pass made, the last first.
        candidates = sorted(
            proposal.candidates, key=lambda entry: (came[entry[0].index] or proposal.slots + 1, -entry[0].index)
        )
        for members in plan([shape for _, shape in candidates], range(len(candidates))):
            slots_of_bucket = [candidates[i][0] for i in members]
            # A name that no other operation can have: those begin with their kind.
            name = f"gradients.bucket.{slots_of_bucket[0].name}"
            self._buckets.append(Bucket(name, slots_of_bucket, candidates[members[0]][1], face.job))
        self.changed()

    def _has_news(self, slots: Sequence[Slot], outcome: Sequence[int]) -> bool:
        if outcome == self._settled:
            return False
        self._settled = [] if self._candidates(slots, outcome) else outcome
        return not self._settled

    def _candidates(self, slots: Sequence[Slot], outcome: Sequence[int]) -> list[Slot]:
        return [slot for slot in slots if slot.bucket is None and outcome[slot.index] == DENSE]

    def _is_tired(self, bucket: Bucket) -> bool:
        return bucket.outgrown or bucket.partly_sent >= _PATIENCE

    def _give_up(self, bucket: Bucket) -> None:
        self._buckets.remove(bucket)
        self._settled = []
        self.changed()
        bucket.give_up()
