"""Messages between ranks in a round of gradients (gradients.py): a vector of bytes, reduced with Max. Pure.

One byte for each rank of the set, 1 where it takes part: one that has called ``hvd.join()`` does not. Then the flags of
``Contribution.flags``, one for each parameter, and ``Bucketing.wishes``. Then, of this round: whether some rank is at
its step, and whether some is at the end of a backward pass; one more than the rank whose pass has failed, 0 for none;
the number of the round within the step, twice, the second time counted down from ``MOST``, so that what is largest
tells the least; how many rounds there have been in a step; and the numbers of the step and of the epoch, both twice in
the same way.
"""

from collections.abc import Sequence
from typing import NamedTuple

from horovod.common.exceptions import HorovodInternalError, RanksDisagreeError

MOST = 255
"""Of what a byte says: numbers of ranks and rounds stop there, the round within a step begins anew."""

_SAID = 10  # bytes about this round, at the end


class Outcome(NamedTuple):
    """What all ranks have told. ``flags``: with the wishes; ``most`` and ``fewest``: rounds that ranks have been
    through in this step; ``rounds``: as many as there have been in a step so far; ``last`` and ``first``: the steps in
    which ranks are, ``last_epoch`` and ``first_epoch``: the epochs, modulo ``MOST``."""

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
    """This rank's vector, one of a set of ``ranks``, in which it is ``me``; None: it is in none. ``failed``: one more
    than its rank in the job, if its backward pass has; ``rounds``: that it has been through since its last step;
    ``most_rounds``: the most that there have been in a step; ``steps``: that its optimizer has taken;
    ``epoch``: that its data loader is in."""
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
    """Return two bytes of which the largest of all ranks tell the largest number and the smallest one."""
    return number % MOST, MOST - number % MOST


def flags_of(vector: bytearray, ranks: int, parameters: int) -> bytearray:
    """The flags alone."""
    return vector[ranks : ranks + parameters]


def read(vector: bytearray, ranks: int) -> Outcome:
    """What the largest of all vectors says."""
    at_step, at_end, failed, most, fewest, rounds, last, first, last_epoch, first_epoch = vector[-_SAID:]
    here, flags = vector[:ranks], vector[ranks:-_SAID]
    about_step = (bool(at_step), bool(at_end), failed, most, MOST - fewest, rounds)
    return Outcome(all(here), flags, *about_step, last, MOST - first, last_epoch, MOST - first_epoch)


def check(outcome: Outcome, steps: int) -> None:
    """Raise an error, on all ranks, for a round that has no right result. ``steps``: of this rank.

    Raises:
        RanksDisagreeError: Ranks are in different steps, or have made different numbers of backward passes.
        HorovodInternalError: The backward pass of a rank has failed.
    """
    if outcome.failed:
        who = f"rank {outcome.failed - 1}" if outcome.failed < MOST else "another rank"
        raise HorovodInternalError(
            f"backward() has failed on {who}, so gradients that were reduced with it are not right; if that rank goes "
            "on, too, call zero_grad() before the next backward()"
        )
    if outcome.most != outcome.fewest:
        raise RanksDisagreeError(
            f"ranks have made different numbers of backward passes since their last step() or zero_grad(): before this "
            f"one some {outcome.fewest}, others {outcome.most} (times backward_passes_per_step)"
        )
    if outcome.last != outcome.first:
        other = outcome.first if outcome.last == steps % MOST else outcome.last
        theirs = steps + (other - steps % MOST + MOST // 2) % MOST - MOST // 2
        raise RanksDisagreeError(
            f"ranks are in different steps: this one has called step() {steps} times, another one {theirs} times, so "
            "one of them has left a step out; where a program skips a step, all ranks have to skip it"
        )
