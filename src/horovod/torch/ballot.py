"""Readiness messages of a round of gradient reduction (gradients.py): byte vectors reduced with Max. Pure.

A message consists of:

- one byte per rank of the process set, 1 if it takes part. A rank that called ``hvd.join()`` does not;
- the flags of ``Contribution.flags``, one per parameter, and of ``Bucketing.wishes``;
- whether some rank is at its step, and whether some rank is at the end of a backward pass;
- one more than the rank whose backward pass failed, or 0;
- the number of the round within the step, the maximum number of rounds in a step, and the numbers of the step and of
  the epoch. All but the maximum are sent twice, the second time subtracted from ``MOST``, so that Max also yields the
  minimum.
"""

from collections.abc import Sequence
from typing import NamedTuple

from horovod.common.exceptions import HorovodInternalError, RanksDisagreeError

MOST = 255
"""Maximum value of a byte. Ranks and counts are capped at it; counts that are sent twice are taken modulo it."""

_SAID = 10  # number of bytes about the round, at the end of a message


class Outcome(NamedTuple):
    """State of all ranks in a round.

    Attributes:
        all_here: True if every rank of the set takes part.
        flags: Flags of the parameters, followed by the wishes.
        at_step: True if some rank is at its step.
        at_end: True if some rank is at the end of a backward pass.
        failed: One more than the rank whose backward pass failed, or 0.
        most, fewest: Maximum and minimum number of rounds that ranks have completed in this step.
        rounds: Maximum number of rounds in a step so far.
        last, first: Maximum and minimum step of the ranks, modulo ``MOST``.
        last_epoch, first_epoch: Maximum and minimum epoch of the ranks, modulo ``MOST``.
    """

    all_here: bool
    flags: Sequence[int]
    at_step: bool
    at_end: bool
    failed: int
    most: int
    fewest: int
    rounds: int
    last: int
    first: int
    last_epoch: int
    first_epoch: int


def cast(
    ranks: int,
    me: int | None,
    flags: Sequence[int],
    wishes: Sequence[int],
    *,
    at_step: bool,
    failed: int,
    rounds: int,
    most_rounds: int,
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
        most_rounds: Maximum number of rounds in a step so far.
        steps: Steps that this rank's optimizer has taken.
        epoch: Epoch of this rank's data loader.
    """
    here = bytearray(ranks)
    if me is not None:
        here[me] = 1
    said = (
        at_step,
        not at_step,
        min(failed, MOST),
        *_both(rounds),
        min(most_rounds, MOST),
        *_both(steps),
        *_both(epoch),
    )
    return here + bytes(flags) + bytes((*wishes, *said))


def _both(number: int) -> tuple[int, int]:
    """Return two bytes whose maxima over all ranks encode the largest and the smallest number."""
    return number % MOST, MOST - number % MOST


def flags_of(vector: bytearray, ranks: int, parameters: int) -> bytearray:
    """Return the parameters' flags from a message."""
    return vector[ranks : ranks + parameters]


def read(vector: bytearray, ranks: int) -> Outcome:
    """Decode the maximum over all ranks' messages."""
    at_step, at_end, failed, most, fewest, rounds, last, first, last_epoch, first_epoch = vector[-_SAID:]
    here, flags = vector[:ranks], vector[ranks:-_SAID]
    about_step = (bool(at_step), bool(at_end), failed, most, MOST - fewest, rounds)
    return Outcome(all(here), flags, *about_step, last, MOST - first, last_epoch, MOST - first_epoch)


def check(outcome: Outcome, steps: int) -> None:
    """Raise an error, on all ranks, for a round that has no correct result.

    ``steps`` is the number of steps on this rank.

    Raises:
        RanksDisagreeError: Ranks are in different steps, or have run different numbers of backward passes.
        HorovodInternalError: The backward pass of a rank failed.
    """
    if outcome.failed:
        who = f"rank {outcome.failed - 1}" if outcome.failed < MOST else "another rank"
        raise HorovodInternalError(
            f"backward() failed on {who}, so the gradients that were reduced with it are invalid; if that rank "
            "continues, call zero_grad() before the next backward()"
        )
    if outcome.most != outcome.fewest:
        raise RanksDisagreeError(
            f"ranks have run different numbers of backward passes since their last step() or zero_grad(): before this "
            f"one, {outcome.fewest} on some ranks and {outcome.most} on others (times backward_passes_per_step)"
        )
    if outcome.last != outcome.first:
        other = outcome.first if outcome.last == steps % MOST else outcome.last
        theirs = steps + (other - steps % MOST + MOST // 2) % MOST - MOST // 2
        raise RanksDisagreeError(
            f"ranks are in different steps: this rank has called step() {steps} times, another rank {theirs} times; "
            "if the program skips a step, all ranks must skip it"
        )
