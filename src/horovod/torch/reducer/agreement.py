"""Readiness messages, which ranks use to agree on the gradients to reduce, and assignment of gradients to buckets.

Nothing in this module communicates. A readiness message is a vector of bytes. Once per round (gradients.py), the engine
reduces the messages of all ranks with Max.

A message consists of:

- one byte per rank of the process set: 1 if the rank takes part, 0 if it has called ``hvd.join()``;
- one flag per parameter (``Contribution.flags``), and the two flags of ``Bucketing.wishes``;
- two flags: 1 if this rank is in ``step()``, and 1 if it is at the end of a backward pass;
- 1 + the rank whose backward pass failed, or 0 if none failed;
- the number of the round within the step, the largest number of rounds in a step so far, the number of the step, and
  the number of the epoch. Each of these except the largest number of rounds is sent twice, the second time subtracted
  from ``MAX_BYTE``, so that Max also yields the minimum over the ranks;
- if gradients are weighted, the weights of all ranks (common/training_loop/weights.py).

Buckets are computed from data that is equal on all ranks, so every rank computes the same buckets.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from horovod.common.exceptions import HorovodInternalError, RanksDisagreeError
from horovod.common.ops import Average
from horovod.common.process_sets import ProcessSet
from horovod.common.training_loop.gradients import BucketSizes
from horovod.common.training_loop.weights import check_weighted_op, current, decode, encode
from horovod.torch.compression import Compression

MAX_BYTE = 255
"""Largest value of a byte. Larger ranks and counts are capped; counts that are sent twice are taken modulo it."""

# Number of status bytes at the end of a readiness message, after all flags.
_STATUS_BYTES = 10


class Readiness(NamedTuple):
    """State of all ranks in a reduction round, decoded from their readiness messages.

    Attributes:
        all_present: True if every rank of the set takes part.
        flags: Each parameter's flag, followed by the flags of ``Bucketing.wishes``. Each is the maximum over all ranks.
        at_step: True if some rank is in ``step()``.
        at_end: True if some rank is at the end of a backward pass.
        failed: 1 + the rank whose backward pass failed, or 0 if none failed.
        max_completed, min_completed: Maximum and minimum number of rounds that ranks have completed in this step.
        max_rounds: Maximum number of rounds in a step so far.
        max_step, min_step: Maximum and minimum step of the ranks, modulo ``MAX_BYTE``.
        max_epoch, min_epoch: Maximum and minimum epoch of the ranks, modulo ``MAX_BYTE``.
    """

    all_present: bool
    flags: Sequence[int]
    at_step: bool
    at_end: bool
    failed: int
    max_completed: int
    min_completed: int
    max_rounds: int
    max_step: int
    min_step: int
    max_epoch: int
    min_epoch: int


def encode_readiness(
    ranks: int,
    me: int | None,
    flags: Sequence[int],
    wishes: Sequence[int],
    *,
    at_step: bool,
    failed: int,
    rounds: int,
    max_rounds: int,
    steps: int,
    epoch: int,
) -> bytearray:
    """Encode this rank's readiness message.

    Args:
        ranks: Size of the process set.
        me: Position of this rank in the set, or None if it takes no part.
        flags: Flags of the parameters.
        wishes: Flags returned by ``Bucketing.wishes``.
        at_step: True in ``step()``, False at the end of a backward pass.
        failed: 1 + this rank's number in the job if its backward pass failed, else 0.
        rounds: Rounds that this rank has completed since its last step.
        max_rounds: Maximum number of rounds in a step so far.
        steps: Steps that this rank's optimizer has taken.
        epoch: Epoch of this rank's data loader.

    Returns:
        The message.
    """
    here = bytearray(ranks)
    if me is not None:
        here[me] = 1
    status = (
        at_step,
        not at_step,
        min(failed, MAX_BYTE),
        *_both(rounds),
        min(max_rounds, MAX_BYTE),
        *_both(steps),
        *_both(epoch),
    )
    return here + bytes(flags) + bytes((*wishes, *status))


def _both(number: int) -> tuple[int, int]:
    """Encode a number as two bytes, so that reducing them with Max yields the maximum and the minimum over all ranks.

    Returns:
        The number and ``MAX_BYTE`` minus the number.
    """
    return number % MAX_BYTE, MAX_BYTE - number % MAX_BYTE


def flags_of(vector: bytearray, ranks: int, parameters: int) -> bytearray:
    """Return the section of a readiness message that contains the parameters' flags."""
    return vector[ranks : ranks + parameters]


def decode_readiness(vector: bytearray, ranks: int) -> Readiness:
    """Decode the element-wise maximum of all ranks' readiness messages."""
    at_step, at_end, failed, highest, lowest, rounds, last, first, last_epoch, first_epoch = vector[-_STATUS_BYTES:]
    here, flags = vector[:ranks], vector[ranks:-_STATUS_BYTES]
    about_step = (bool(at_step), bool(at_end), failed, highest, MAX_BYTE - lowest, rounds)
    return Readiness(all(here), flags, *about_step, last, MAX_BYTE - first, last_epoch, MAX_BYTE - first_epoch)


def check_readiness(readiness: Readiness, steps: int) -> None:
    """Raise an error on all ranks if readiness messages show that the reduction's result would be wrong.

    ``steps`` is the number of steps that this rank's optimizer has taken.

    Raises:
        RanksDisagreeError: If ranks are at different steps, or have run different numbers of backward passes.
        HorovodInternalError: If the backward pass of a rank failed.
    """
    if readiness.failed:
        who = f"rank {readiness.failed - 1}" if readiness.failed < MAX_BYTE else "another rank"
        raise HorovodInternalError(
            f"backward() failed on {who}, so the gradients that were reduced with it are invalid; if that rank "
            "continues, call zero_grad() before the next backward()"
        )
    if readiness.max_completed != readiness.min_completed:
        raise RanksDisagreeError(
            "ranks have run different numbers of backward passes since their last step() or zero_grad(): before this "
            f"one, {readiness.min_completed} on some ranks and {readiness.max_completed} on others (times "
            "backward_passes_per_step)"
        )
    if readiness.max_step != readiness.min_step:
        other = readiness.min_step if readiness.max_step == steps % MAX_BYTE else readiness.max_step
        theirs = steps + (other - steps % MAX_BYTE + MAX_BYTE // 2) % MAX_BYTE - MAX_BYTE // 2
        raise RanksDisagreeError(
            f"ranks are in different steps: this rank has called step() {steps} times, another rank {theirs} times; "
            "if the program skips a step, all ranks must skip it"
        )


def explain(error: RanksDisagreeError, name: str) -> None:
    """Add the likely cause to the error that is raised if readiness messages differ in length."""
    if name in str(error):
        cause = "all ranks must have the same parameters, and all must use hvd.weight() or weight=, or none"
        error.args = (f"{error}; {cause}",)


ALIGNMENT = 64
"""Alignment of each gradient in its bucket, in bytes: the size of a cache line and of an AVX-512 register."""

DEVICE_ALIGNMENT = 256
"""Alignment of each gradient in device memory, in bytes, for coalesced access."""

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Gradient:
    """Properties of a gradient that determine which other gradients it can share a bucket with."""

    numel: int
    dtype: torch.dtype
    device: torch.device = CPU

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize

    @property
    def padded(self) -> int:
        """Size of the gradient in bytes, rounded up to the alignment."""
        alignment = ALIGNMENT if self.device.type == "cpu" else DEVICE_ALIGNMENT
        return -(-self.nbytes // alignment) * alignment

    def like(self, other: "Gradient") -> bool:
        """Return True if this gradient and another gradient can share a bucket."""
        return self.dtype is other.dtype and self.device == other.device


def plan(
    gradients: Sequence[Gradient],
    order: Sequence[int],
    first_bytes: int = BucketSizes().first,
    max_bytes: int = BucketSizes().bucket,
) -> list[list[int]]:
    """Assign gradients to buckets.

    Args:
        gradients: Gradients to assign.
        order: All positions in ``gradients``, in the order in which backward produces them. Neighbors with the same
            dtype and device share a bucket while it has room.
        first_bytes: Maximum bytes of the first bucket.
        max_bytes: Maximum bytes of the other buckets.

    Returns:
        For each bucket, the positions of its members in ``gradients``.
    """
    buckets: list[list[int]] = []
    filled, limit = 0, first_bytes
    for position in order:
        size = gradients[position].padded
        fits = buckets and filled + size <= limit and gradients[buckets[-1][-1]].like(gradients[position])
        if fits:
            buckets[-1].append(position)
            filled += size
        else:
            limit = max_bytes if buckets else first_bytes
            buckets.append([position])
            filled = size
    return buckets


def offsets(gradients: Sequence[Gradient]) -> tuple[list[int], int]:
    """Return the byte offset of each gradient in a bucket, and the bucket's size in bytes."""
    starts: list[int] = []
    end = 0
    for gradient in gradients:
        starts.append(end)
        end += gradient.padded
    return starts, end


class Weighing:
    """Weighting of one optimizer's gradients, for example by the number of samples."""

    def __init__(self, weight: Any, op: int, compression: Any) -> None:
        """Store the settings. Nothing is weighted yet. ``weight`` is the optimizer's argument ``weight``."""
        self._argument = weight
        self._op = op
        self._compressed = compression not in (Compression.none, Compression.bf16, Compression.wire_bf16)
        self.enabled = False
        """True if gradients are weighted."""
        self.deferred = False
        """True if gradients are submitted only when all ranks' weights are known.

        Products of fp16 or compressed gradients and numbers of samples can overflow. They are multiplied by this rank's
        share of the total weight instead.
        """
        self.weight = 0.0
        """Weight of this rank in this round."""
        self.total: float | None = None
        """Total weight of all ranks in the rounds of the last step, or None without a weighted round."""
        self._block: Any = None
        self._place: Any = None

    def starts(self) -> bool:
        """Return True if this is the first reduction round whose gradients are weighted.

        Raises:
            ValueError: If the reduction is not Average in an ``hvd.weight`` block or ``hvd.sync`` loop.
        """
        if self.enabled or not (self._argument is not None or current.active):
            return False
        check_weighted_op(self._op, current.batch if current.block is None else current.block)
        self.enabled = self._op == Average
        return self.enabled

    def counts_without_pass(self, slots: Sequence[Any]) -> bool:
        """Return True if this rank has a weight in the average although it has run no backward pass.

        This is the case in an ``hvd.weight`` block. Outside of a block, it is the case if a gradient of ``slots`` is
        not zero. But if this optimizer's backward passes run in blocks, such gradients are left over from earlier
        passes and do not count.
        """
        if current.block is not None:
            return True
        grads = (slot.parameter.grad for slot in slots if slot.parameter.grad is not None)
        values = (grad._values() if grad.is_sparse else grad for grad in grads)
        return self._block is None and any(bool((value != 0).any()) for value in values)

    def take(self, counts: bool, accumulates: bool, has_fp16: bool) -> float:
        """Determine this rank's weight.

        Args:
            counts: True to include this rank's gradients. If False, its weight is 0.
            accumulates: True if an earlier backward pass of this round has already ended.
            has_fp16: True if some gradients are fp16.

        Returns:
            Factor by which to scale the gradients before the reduction.

        Raises:
            ValueError: If the weight is invalid.
            RuntimeError: If the backward passes of this round ran in different ``hvd.weight`` blocks, or had different
                weights.
        """
        before, self.weight = self.weight, current.number(self._argument) if counts else 0.0
        place = current.block, current.index
        if accumulates and (self._place != place or before != self.weight):
            raise RuntimeError(
                "all backward passes of a step must run in the same hvd.weight() block or hvd.sync() iteration, or "
                f"with the same weight, which counts the samples of all of them; got {before:g}, then {self.weight:g}"
            )
        self._place = place
        if counts:
            self._block = current.block
        self.deferred = has_fp16 or self._compressed
        return 0.0 if self.deferred else self.weight

    def message(self, me: int | None, ranks: int) -> bytearray:
        """Encode this rank's weight for a readiness message. The result is empty if gradients are unweighted."""
        return encode(self.weight, current.last, me, ranks) if self.enabled else bytearray()

    def split(self, message: bytearray, ranks: int) -> tuple[bytearray, float, list[bool]]:
        """Return a readiness message without its weights, the total weight, and which ranks have no more batches."""
        if not self.enabled:
            return message, 0.0, []
        numbers, ended = decode(message[-8 * ranks :])
        return message[: -8 * ranks], math.fsum(numbers), ended

    def divide(
        self,
        grads: Sequence[torch.Tensor | None],
        total: float,
        ended: list[bool],
        first: bool,
        process_set: ProcessSet,
    ) -> None:
        """Divide the summed gradients by the total weight, unless each rank scaled its own before the reduction.

        Args:
            grads: Results of the round.
            total: Total weight of the round.
            ended: For each rank, whether it has no more batches.
            first: True if this is the first round of the step.
            process_set: Process set of the optimizer.
        """
        self.total = total if first else (self.total or 0.0) + total
        if process_set.process_set_id == 0:
            current.ended = ended
        if self.deferred or not total:
            return
        values = [(grad._values() if grad.is_sparse else grad).data for grad in grads if grad is not None]
        if values:
            torch._foreach_mul_(values, 1.0 / total)

    def share(self, total: float) -> float:
        """Return this rank's weight as a fraction of the total weight of all ranks."""
        return self.weight / total if total else 0.0
