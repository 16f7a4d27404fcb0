"""Formation of buckets of gradients during training.

At first each gradient is reduced alone. After each round all ranks know the combined flags (gradients.py): which
gradients exist, and which of them no rank excludes from buckets. The buckets of the next round follow from these flags
and from the order in which rank 0's gradients arrived, so all ranks decide alike.
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
"""Bit of a flag: this dense gradient cannot share a bucket on this rank."""

EVERYTHING = 1 << 62
"""Value of ``most`` that lets gradients of every size share buckets."""

# A bucket is dissolved after this many steps in a row in which it lacked gradients on all ranks.
_PATIENCE = 3
# How often a gradient's bucket may be dissolved, because of missing gradients or a changed dtype, before the gradient
# is reduced alone permanently.
_MOST_MOVES = 2


@dataclass
class _Proposal:
    """A change of buckets that the ranks are about to agree on."""

    work: Any
    message: torch.Tensor
    slots: int
    candidates: list[tuple[Slot, Gradient]]
    buckets: list[Bucket]
    job: Any


class Bucketing:
    """The buckets of one optimizer."""

    def __init__(self, most: int, process_set: ProcessSet) -> None:
        """Create a set of buckets for gradients of at most ``most`` bytes each; 0 disables buckets."""
        self.most = most
        self.arrived: list[Slot] = []
        """Gradients outside of buckets that backward has produced in this round, in order of arrival."""
        self._buckets: list[Bucket] = []
        # Cached result of ``apart``.
        self._apart: list[Slot] | None = None
        # Length of ``arrived`` in the last round.
        self._arrived_last = 0
        self._process_set = process_set
        self._settled: Sequence[int] = []  # flags of the last round, if they led to no new bucket
        self._proposal: _Proposal | None = None

    @property
    def buckets(self) -> list[Bucket]:
        """All buckets, after any pending proposal was applied (``settle``)."""
        self.settle()
        return self._buckets

    def apart(self, slots: list[Slot]) -> list[Slot]:
        """Return those of ``slots``, which must be all of the optimizer's, that are in no bucket."""
        self.settle()
        if self._apart is None:
            self._apart = [slot for slot in slots if slot.bucket is None]
        return self._apart

    def expects_more(self) -> bool:
        """Return True if backward is expected to produce more gradients, judging by the last round.

        If not, the end of the pass is near. Gradients are then submitted at that point: the program waits right after
        it, so the engine's thread need not be woken.
        """
        if len(self.arrived) < self._arrived_last:
            return True
        return any(bucket.waiting_for for bucket in self._buckets)

    def changed(self) -> None:
        """Invalidate caches after slots or buckets have changed."""
        self._apart = None

    def flag(self, slot: Slot) -> int:
        """Return the flag of a slot with a dense gradient."""
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
        """Prepare for the next round."""
        self._arrived_last = len(self.arrived)
        self.arrived.clear()
        for bucket in self._buckets:
            bucket.restart()

    def drop_outdated(self) -> None:
        """Dissolve the buckets of a previous job, because new ranks of the current job do not have them."""
        if self._proposal is not None and self._proposal.job is not face.job:
            self._proposal = None
        for bucket in [b for b in self._buckets if b.job is not face.job]:
            self._give_up(bucket)
            for slot in bucket.members:
                slot.moves = 0

    def wishes(self) -> list[int]:
        """Return two flags: 1 if this rank wants no buckets, and 1 if one of its buckets should be dissolved."""
        return [int(self.most == 0), int(any(self._is_tired(bucket) for bucket in self._buckets))]

    def propose(self, slots: Sequence[Slot], outcome: Sequence[int]) -> None:
        """Start a change of buckets, which ``settle`` applies.

        All ranks must call this after a round in which no reduction failed. It does not block, because ranks may end
        the rounds of several optimizers in different orders.

        Args:
            slots: All slots of the optimizer.
            outcome: Maximum over all ranks of each slot's flag, followed by ``wishes``.
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
        handles.park(work, message)  # keeps the tensor if the optimizer is deleted before the operation is done
        candidates = [(slot, slot.shape) for slot in self._candidates(slots, outcome)]
        self._proposal = _Proposal(work, message, count, candidates, list(self._buckets), face.job)

    def settle(self) -> None:
        """Wait for a pending proposal and apply it. Must be called before the next round examines gradients.

        Raises:
            HorovodInternalError: A rank was lost.
        """
        proposal, self._proposal = self._proposal, None
        if proposal is None:
            return
        handles.wait(proposal.work, proposal.message)
        present, *rest = (int(n) for n in proposal.message.tolist())
        # A rank that has called ``hvd.join()`` takes no part and would not know about the new buckets.
        if present < len(self._process_set.ranks or ()):
            return
        # `came`: by slot, the position from 1 in the order in which the set's first rank received its gradients; 0 if
        # none arrived. `votes`: by bucket, the number of ranks that want to dissolve it.
        came, votes = rest[: proposal.slots], rest[proposal.slots :]
        # Gradients of a dissolved bucket are reduced alone in the next round at least; its flags tell whether they may
        # share a bucket again.
        for bucket, wish in zip(proposal.buckets, votes, strict=True):
            if wish:
                self._give_up(bucket)
        # In order of arrival, then the gradients that backward did not produce, from last to first.
        candidates = sorted(
            proposal.candidates, key=lambda entry: (came[entry[0].index] or proposal.slots + 1, -entry[0].index)
        )
        for members in plan([shape for _, shape in candidates], range(len(candidates))):
            slots_of_bucket = [candidates[i][0] for i in members]
            # No other operation can have this name, because all others begin with the operation's kind.
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
