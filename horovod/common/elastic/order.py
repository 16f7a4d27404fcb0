"""Which rank visits which samples of an epoch, whatever the number of ranks is and however often it changes. Pure.

All ranks have the same order of all samples, which follows from the seed and the epoch. They move through it together:
a *round* is the next few samples of it, one or more for each rank, and a rank that has recorded so many of its own has
been through so many rounds. So what is done is the beginning of the order, one number, the same for any number of
ranks, and every rank knows it of all: also of a rank that is lost, whose samples went into the same steps as ours.

    order   s0 s1 s2 s3 | s4 s5 s6 s7 | s8 s9            4 ranks, after one round rank 3 is lost:
            `- done ---'  r0 r1 r2 r0   r1 r2  <- 3 ranks share what is left

Ranks must take equally many steps, so the last round is filled up with samples of the same part of the order, which
are visited twice (``filled``); where shares are as good as equal, it is dealt out anew first, so that fewer samples
than there are ranks are visited twice. Whoever wants each exactly once leaves that out; ranks then differ by a sample.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass


def permutation(length: int, seed: int, epoch: int) -> list[int]:
    """The order of an epoch; the same on all machines and in all versions of Python: only ``getrandbits`` of the
    generator is used, which is a fixed algorithm (MT19937), and an unbiased draw of our own."""
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
    """How many samples of a round each rank gets; a round of ``sum(of)`` samples. One each as a rule; other shares
    where a global batch does not divide by the number of ranks."""

    of: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.of or min(self.of) < 0 or max(self.of) < 1:
            raise ValueError(f"shares are {list(self.of)}, accepted are numbers of 0 or more, one above 0 among them")

    @classmethod
    def equal(cls, ranks: int) -> "Shares":
        return cls((1,) * ranks)

    @property
    def round(self) -> int:
        return sum(self.of)

    @property
    def alike(self) -> bool:
        """Those of the first ranks may be larger by one, as where a batch does not divide by the number of ranks."""
        return min(self.of) > 0 and max(self.of) - min(self.of) <= 1 and sorted(self.of, reverse=True) == list(self.of)

    def begin(self, rank: int) -> int:
        """Where the rank's part of a round begins."""
        return sum(self.of[:rank])


def mine(left: Sequence[int], rank: int, shares: Shares, filled: bool) -> list[int]:
    """What the rank visits of ``left``, the samples that are not done, in their order. ``filled``: all ranks go through
    equally many rounds, and have a part of each."""
    size, share, begin = shares.round, shares.of[rank], shares.begin(rank)
    if not left or not share:
        return []
    rounds = -(-len(left) // size)
    if filled and len(left) % size and shares.alike:
        whole = len(left) - len(left) % size
        rest = left[whole:]
        each, more = divmod(len(rest), len(shares.of))  # at most the rank's share, since larger ones come first
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
    """How many of ``length`` samples that were left are done when the rank has visited ``recorded`` of its own. A round
    counts when the rank is through with its part of it; ``whole``: those are all that it has, so that the last part
    counts, however small."""
    share = shares.of[rank]
    rounds = 0 if not share else -(-recorded // share) if whole else recorded // share
    return min(length, rounds * shares.round)
