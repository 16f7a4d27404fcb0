"""Assignment of an epoch's samples to ranks, whose number may change during the epoch.

All ranks use the same order of all samples, which depends on the seed and the epoch, and they move through it together.
A *round* consists of the next samples of the order: one or more for each rank, its share. A rank that has recorded n
shares has completed n rounds. So the completed samples are always a prefix of the order. One number describes this
prefix, whatever the number of ranks is. Each rank knows it without asking the others, even lost ones, because all ranks
take the same steps.

    order   s0 s1 s2 s3 | s4 s5 s6 s7 | s8 s9            4 ranks, after one round rank 3 is lost:
            `- done ---'  r0 r1 r2 r0   r1 r2  <- 3 ranks share what is left

All ranks must make the same number of steps. So with ``filled``, the last round is filled up with samples from the same
part of the order, which are then visited twice. If shares are (nearly) equal, the last samples are first divided anew,
so that fewer samples than there are ranks are visited twice. Without ``filled``, each sample is visited exactly once,
and the ranks' counts differ by at most one.

``Walk`` is the position of one rank in an epoch, which is kept when the members of the job change.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


def permutation(length: int, seed: int, epoch: int) -> list[int]:
    """Return the order of an epoch, the same on all machines and in all Python versions.

    For that, it uses only the generator's ``getrandbits`` (MT19937) and its own unbiased shuffle.
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
        """True if all shares are positive and differ by at most one, with the larger ones first."""
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
        filled: True if all ranks must have a part of every round.
    """
    size, share, begin = shares.round, shares.of[rank], shares.begin(rank)
    if not left or not share:
        return []
    rounds = -(-len(left) // size)
    if filled and len(left) % size and shares.alike:
        whole = len(left) - len(left) % size
        rest = left[whole:]
        each, more = divmod(len(rest), len(shares.of))  # never more than the share, as larger shares come first
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

    A round counts only if the rank has completed its part of it.

    Args:
        recorded: Samples that the rank has visited.
        rank: The rank.
        shares: Shares of all ranks.
        length: Number of samples that are not done when counting begins.
        whole: True if the rank has visited all its samples, so that its last part counts even if it is smaller.
    """
    share = shares.of[rank]
    rounds = 0 if not share else -(-recorded // share) if whole else recorded // share
    return min(length, rounds * shares.round)


class Resumes:
    """Object whose ``state_dict`` an elastic state saves, restores and synchronizes.

    The ``state_dict`` is the same on all ranks, while each rank keeps its own object.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the position in a form that is valid on all ranks and for any number of ranks."""
        raise NotImplementedError

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved position, dividing the rest among the current members."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt the position to new members of the job."""
        raise NotImplementedError


class Walk(Resumes):
    """Position of a rank in an epoch of ``length`` samples.

    Args:
        length: Number of samples.
        rank: ``rank`` of the frontend.
        size: ``size`` of the frontend.
        shuffle: If True, use a different order in each epoch.
        seed: Seed of the order.
        filled: If True, all ranks make the same number of steps; a few samples (fewer than there are ranks) are visited
            twice at the end of an epoch.
    """

    def __init__(
        self,
        length: int,
        rank: Callable[[], int],
        size: Callable[[], int],
        shuffle: bool,
        seed: int,
        filled: bool = True,
    ) -> None:
        self.length = length
        self.shuffle = shuffle
        self.seed = seed
        self.filled = filled
        self.epoch = 0
        self._place = rank, size
        self._order: Sequence[int] = range(0)
        self._order_of = -1  # Epoch of `_order`.
        self._done = 0  # Samples done when the rest was last divided among ranks.
        self._recorded = 0  # Samples that this rank has recorded since then.
        self._me, self._ranks = 0, 1
        self.mine: list[int] = []
        """Samples that this rank visits from here on, in order."""
        self._begin(0, 0)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; call this when the previous epoch is over.

        If ``epoch`` is the current epoch and partly completed, recorded samples stay done. If it is complete, it begins
        again.
        """
        under_way = epoch == self.epoch and 0 < self.processed_num < self.length
        self._begin(epoch, self.processed_num if under_way else 0)

    def record(self, samples: int) -> None:
        """Record that the next ``samples`` of ``mine`` are done. All ranks must do so in the same steps."""
        self._recorded = min(self._recorded + samples, len(self.mine))

    @property
    def processed_num(self) -> int:
        """Number of samples of the epoch that all ranks together have completed."""
        left, whole = self.length - self._done, self._recorded >= len(self.mine)
        return self._done + done(self._recorded, self._me, self._parts(), left, whole)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "processed_num": self.processed_num, "seed": self.seed, "length": self.length}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved position.

        Raises:
            ValueError: If it is for a different dataset or seed.
        """
        for name, here in (("seed", self.seed), ("length", self.length)):
            if state_dict.get(name, here) != here:
                raise ValueError(f"the dataset's state has {name} {state_dict[name]}, this dataset {here}")
        self._begin(state_dict["epoch"], state_dict["processed_num"])

    def reset(self) -> None:
        self._share_out(self.processed_num)

    def _begin(self, epoch: int, processed: int) -> None:
        if epoch != self._order_of:
            self._order = permutation(self.length, self.seed, epoch) if self.shuffle else range(self.length)
            self._order_of = epoch
        self.epoch = epoch
        self._share_out(min(processed, self.length))

    def _share_out(self, processed: int) -> None:
        self._done, self._recorded = processed, 0
        self._me, self._ranks = (ask() for ask in self._place)
        self.mine = mine(self._order[processed:], self._me, self._parts(), self.filled)

    def _parts(self) -> Shares:
        """Return the shares of the current ranks."""
        return Shares.equal(self._ranks)
