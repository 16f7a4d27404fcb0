"""Agreement of ranks on gradients to reduce: readiness messages, and the gradients of each bucket. Pure.

A readiness message is a byte vector; the engine reduces those of all ranks with Max, once per round (gradients.py).

A message consists of:

- one byte per rank of the process set, 1 if it takes part. A rank that called ``hvd.join()`` does not;
- the flags of ``Contribution.flags``, one per parameter, and of ``Bucketing.wishes``;
- whether some rank is at its step, and whether some rank is at the end of a backward pass;
- one more than the rank whose backward pass failed, or 0;
- the number of the round within the step, the maximum number of rounds in a step, and the numbers of the step and of
  the epoch. All but the maximum are sent twice, the second time subtracted from ``MAX_BYTE``, so that Max also yields
  the minimum.

The assignment of gradients to buckets follows from what all ranks know then, so every rank computes the same buckets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from horovod.common.exceptions import HorovodInternalError, RanksDisagreeError

MAX_BYTE = 255
"""Maximum value of a byte. Ranks and counts are capped at it; counts that are sent twice are taken modulo it."""

_STATUS_BYTES = 10  # number of bytes about the round, at the end of a message


class Readiness(NamedTuple):
    """State of all ranks in a round.

    Attributes:
        all_here: True if every rank of the set takes part.
        flags: Flags of the parameters, followed by the wishes.
        at_step: True if some rank is at its step.
        at_end: True if some rank is at the end of a backward pass.
        failed: One more than the rank whose backward pass failed, or 0.
        max_completed, min_completed: Maximum and minimum number of rounds that ranks have completed in this step.
        max_rounds: Maximum number of rounds in a step so far.
        max_step, min_step: Maximum and minimum step of the ranks, modulo ``MAX_BYTE``.
        max_epoch, min_epoch: Maximum and minimum epoch of the ranks, modulo ``MAX_BYTE``.
    """

    all_here: bool
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
    """Return this rank's message.

    Args:
        ranks: Size of the process set.
        me: Position of this rank in the set, or None if it takes no part.
        flags: Flags of the parameters.
        wishes: Flags of ``Bucketing.wishes``.
        at_step: True at a step, False at the end of a backward pass.
        failed: One more than this rank's number in the job if its backward pass failed, else 0.
        rounds: Rounds that this rank has completed since its last step.
        max_rounds: Maximum number of rounds in a step so far.
        steps: Steps that this rank's optimizer has taken.
        epoch: Epoch of this rank's data loader.
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
    """Return two bytes whose maxima over all ranks encode the largest and the smallest number."""
    return number % MAX_BYTE, MAX_BYTE - number % MAX_BYTE


def flags_of(vector: bytearray, ranks: int, parameters: int) -> bytearray:
    """Return the parameters' flags from a message."""
    return vector[ranks : ranks + parameters]


def decode_readiness(vector: bytearray, ranks: int) -> Readiness:
    """Decode the maximum over all ranks' messages."""
    at_step, at_end, failed, most, least, rounds, last, first, last_epoch, first_epoch = vector[-_STATUS_BYTES:]
    here, flags = vector[:ranks], vector[ranks:-_STATUS_BYTES]
    about_step = (bool(at_step), bool(at_end), failed, most, MAX_BYTE - least, rounds)
    return Readiness(all(here), flags, *about_step, last, MAX_BYTE - first, last_epoch, MAX_BYTE - first_epoch)


def check_readiness(readiness: Readiness, steps: int) -> None:
    """Raise an error, on all ranks, for a round that has no correct result.

    ``steps`` is the number of steps on this rank.

    Raises:
        RanksDisagreeError: Ranks are in different steps, or have run different numbers of backward passes.
        HorovodInternalError: The backward pass of a rank failed.
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


ALIGNMENT = 64
"""Alignment of each gradient in its bucket, in bytes: a cache line and a vector register."""

DEVICE_ALIGNMENT = 256
"""Alignment in device memory, in bytes: the unit that GPU threads read together, and of GPU memory allocators."""

FIRST_BUCKET = 1 << 20
"""Maximum bytes of the first bucket; a small one can be sent early."""

BUCKET = 4 << 20
"""Maximum bytes of the other buckets; a larger gradient gets a separate bucket."""

SMALL = 256 << 10
"""Maximum bytes of a gradient that shares a bucket by default.

A bucket saves operations, of which large gradients need few, but costs a copy.
"""


CPU = torch.device("cpu")


@dataclass(frozen=True)
class Gradient:
    """The properties of a gradient that determine its bucket."""

    numel: int
    dtype: torch.dtype
    device: torch.device = CPU

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize

    @property
    def padded(self) -> int:
        """``nbytes`` rounded up to a multiple of the alignment."""
        alignment = ALIGNMENT if self.device.type == "cpu" else DEVICE_ALIGNMENT
        return -(-self.nbytes // alignment) * alignment

    def like(self, other: "Gradient") -> bool:
        """Return True if both gradients may share a bucket."""
        return self.dtype is other.dtype and self.device == other.device


def plan(
    gradients: Sequence[Gradient], order: Sequence[int], first_bytes: int = FIRST_BUCKET, max_bytes: int = BUCKET
) -> list[list[int]]:
    """Return the buckets, each as a list of positions in ``gradients``.

    Args:
        gradients: Gradients to assign.
        order: Positions in ``gradients``, each once, in the order in which backward produces them. Neighbors with the
            same dtype and device share a bucket while it has room.
        first_bytes: Maximum bytes of the first bucket.
        max_bytes: Maximum bytes of the other buckets.
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
    """Return (offset of each gradient in a bucket of exactly these, size of the bucket), in bytes."""
    starts: list[int] = []
    end = 0
    for gradient in gradients:
        starts.append(end)
        end += gradient.padded
    return starts, end
