"""Assignment of an epoch's samples to ranks, for any number of ranks and any changes of it. Pure.

All ranks use the same order of all samples, which depends on the seed and the epoch. They move through it together. A
*round* is the next few samples of the order, one or more per rank. A rank that has recorded n of its shares has
completed n rounds. So the completed samples are always a prefix of the order, described by one number that does not
depend on the number of ranks. Every rank knows it for all ranks, also for a lost rank, whose samples went into the same
steps.

    order   s0 s1 s2 s3 | s4 s5 s6 s7 | s8 s9            4 ranks, after one round rank 3 is lost:
            `- done ---'  r0 r1 r2 r0   r1 r2  <- 3 ranks share what is left

Ranks must make equally many steps, so the last round is filled up with samples from the same part of the order, which
are visited twice (``filled``). If shares are (nearly) equal, the last samples are first redistributed, so that fewer
samples than there are ranks are visited twice. Without ``filled`` each sample is visited exactly once, and the ranks'
counts differ by at most one.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass


def permutation(length: int, seed: int, epoch: int) -> list[int]:
    """Return the order of an epoch, the same on all machines and in all Python versions.

    Only ``getrandbits`` of the generator, a fixed algorithm (MT19937), and our own unbiased shuffle are used.
    """
    bits = random.Random((seed << 32) + epoch).getrandbits
    made = list(range(length))
    for last in range(length - 1, 0, -1):
        width = (last + 1).bit_length()
        chosen = bits(width)
        while chosen > last:
            chosen = bits(width)
        made[last], made[chosen] = made[chosen], made[last]
    return made


@dataclass(frozen=True)
class Shares:
    """Number of samples that each rank gets per round.

    Usually one each. Other shares are used if a global batch is not divisible by the number of ranks.
    """

    of: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.of or min(self.of) < 0 or max(self.of) < 1:
            raise ValueError(f"shares must be numbers of 0 or more, at least one above 0, got {list(self.of)}")

    @classmethod
    def equal(cls, ranks: int) -> "Shares":
        """Return one sample per round for each rank."""
        return cls((1,) * ranks)

    @property
    def round(self) -> int:
        """Number of samples of all ranks per round."""
        return sum(self.of)

    @property
    def alike(self) -> bool:
        """True if shares are positive and differ by at most one, with the larger ones first."""
        return min(self.of) > 0 and max(self.of) - min(self.of) <= 1 and sorted(self.of, reverse=True) == list(self.of)

    def begin(self, rank: int) -> int:
        """Return the offset of the rank's part within a round."""
        return sum(self.of[:rank])


def mine(left: Sequence[int], rank: int, shares: Shares, filled: bool) -> list[int]:
    """Return the samples of ``left`` that the rank visits, in order.

    Args:
        left: Samples that are not done, in order.
        rank: The rank.
        shares: Shares of all ranks.
        filled: True if all ranks must go through equally many rounds and have a part of each.
    """
    size, share, begin = shares.round, shares.of[rank], shares.begin(rank)
    if not left or not share:
        return []
    rounds = -(-len(left) // size)
    if filled and len(left) % size and shares.alike:
        whole = len(left) - len(left) % size
        rest = left[whole:]
        each, more = divmod(len(rest), len(shares.of))  # at most the rank's share, since larger shares come first
        first = rank * each + min(rank, more)
        part = rest[first : first + each + (rank < more)] or [left[(whole + rank) % len(left)]]
        return [*mine(left[:whole], rank, shares, filled), *part]
    if share == 1:
        visits = list(left[begin::size])
    else:
        places = (number * size + begin + index for number in range(rounds) for index in range(share))
        visits = [left[place] for place in places if place < len(left)]
    if filled:
        last = (rounds - 1) * size + begin
        filling = (place % len(left) for place in range(last, last + share) if place >= len(left))
        visits += [left[place] for place in filling]
    return visits


def done(recorded: int, rank: int, shares: Shares, length: int, whole: bool = False) -> int:
    """Return how many samples are done when the rank has visited ``recorded`` samples.

    Only rounds count in which the rank has completed its part.

    Args:
        recorded: Samples that the rank has visited.
        rank: The rank.
        shares: Shares of all ranks.
        length: Number of samples that were left.
        whole: True if the rank has visited all its samples, so that its last part counts even if it is smaller.
    """
    share = shares.of[rank]
    rounds = 0 if not share else -(-recorded // share) if whole else recorded // share
    return min(length, rounds * shares.round)
