"""Assign samples to a changing number of ranks: sample order, shares per rank, and batch sizes.

The seed and the epoch determine the order of all samples. The ranks go through this order together. In each *round*,
every rank gets its *share*: the next sample of the order, or the next few. A rank that has recorded n shares has
completed n rounds. The completed samples are therefore always a prefix of the order, for any number of ranks, and one
number describes the prefix. Because all ranks take the same steps, each rank knows this number without communication,
even after other ranks are lost.

    order   s0 s1 s2 s3 | s4 s5 s6 s7 | s8 s9            4 ranks, after one round rank 3 is lost:
            `- completed ---'  r0 r1 r2 r0   r1 r2  <- 3 ranks share what is left

All ranks must make the same number of steps. With ``filled``, the last round is therefore filled up with other samples
from the same part of the order, which are then visited twice. If shares are (nearly) equal, the last samples are first
divided again, so that fewer samples than there are ranks are visited twice. Without ``filled``, each sample is visited
exactly once, and the ranks' counts differ by at most one.

``Walk`` is the position of one rank in an epoch, which persists when the members of the job change.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


def permutation(length: int, seed: int, epoch: int) -> list[int]:
    """Return an epoch's order of samples, the same on all machines and in all Python versions.

    The shuffle uses only ``getrandbits`` (MT19937), which is stable across Python versions.
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
    """Number of samples that each rank takes per round. Within a round, ranks take their samples in rank order.

    Usually each rank takes one. The numbers differ if the global batch is not divisible by the number of ranks.
    """

    of: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.of or min(self.of) < 0 or max(self.of) < 1:
            raise ValueError(f"shares must be numbers of 0 or more, at least one above 0, got {list(self.of)}")

    @classmethod
    def equal(cls, ranks: int) -> "Shares":
        """Create the shares for ``ranks`` ranks that take one sample each per round."""
        return cls((1,) * ranks)

    @property
    def round(self) -> int:
        """Total number of samples in a round, over all ranks."""
        return sum(self.of)

    @property
    def alike(self) -> bool:
        """True if the ranks' numbers of samples differ by at most one, none is 0, and larger ones come first."""
        return min(self.of) > 0 and max(self.of) - min(self.of) <= 1 and sorted(self.of, reverse=True) == list(self.of)

    def begin(self, rank: int) -> int:
        """Return the offset of the rank's first sample within a round."""
        return sum(self.of[:rank])


def share_of_rank(remaining: Sequence[int], rank: int, shares: Shares, filled: bool) -> list[int]:
    """Return the samples that one rank visits, in order.

    Args:
        remaining: Remaining samples of the epoch, in order.
        rank: Rank whose samples to return.
        shares: Shares of all ranks.
        filled: True to repeat samples so that all ranks get samples in every round.
    """
    size, share, begin = shares.round, shares.of[rank], shares.begin(rank)
    if not remaining or not share:
        return []
    rounds = -(-len(remaining) // size)
    if filled and len(remaining) % size and shares.alike:
        whole = len(remaining) - len(remaining) % size
        rest = remaining[whole:]
        # Divide the samples of the incomplete last round. If there is a remainder, the first ranks get one more
        # sample each, because no other rank has a larger share.
        each, more = divmod(len(rest), len(shares.of))
        first = rank * each + min(rank, more)
        part = rest[first : first + each + (rank < more)] or [remaining[(whole + rank) % len(remaining)]]
        return [*share_of_rank(remaining[:whole], rank, shares, filled), *part]
    if share == 1:
        visits = list(remaining[begin::size])
    else:
        places = (number * size + begin + index for number in range(rounds) for index in range(share))
        visits = [remaining[place] for place in places if place < len(remaining)]
    if filled:
        last = (rounds - 1) * size + begin
        filling = (place % len(remaining) for place in range(last, last + share) if place >= len(remaining))
        visits += [remaining[place] for place in filling]
    return visits


def completed(recorded: int, rank: int, shares: Shares, length: int, whole: bool = False) -> int:
    """Return the job's total number of completed samples, given the number that one rank has visited.

    The ranks take samples in rounds. A round counts only if the rank has completed its own share of it.

    Args:
        recorded: Samples that the rank has visited.
        rank: The rank.
        shares: Shares of all ranks.
        length: Number of samples that remained when counting began.
        whole: True if the rank has visited all its samples, so that a smaller last share counts as a round.
    """
    share = shares.of[rank]
    rounds = 0 if not share else -(-recorded // share) if whole else recorded // share
    return min(length, rounds * shares.round)


class Resumes:
    """Base class of elastic state attributes that track a position, such as samplers.

    The elastic state saves, restores and synchronizes the ``state_dict``, which is the same on all ranks. Each rank
    keeps its own object.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the position in a form that every rank can load, with any number of ranks."""
        raise NotImplementedError

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved position, and divide the remaining samples among the current ranks."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt the position in the epoch after the job's ranks have changed."""
        raise NotImplementedError


class Walk(Resumes):
    """Position of one rank in an epoch of ``length`` samples.

    Args:
        length: Number of samples.
        rank: Function that returns this process's rank.
        size: Function that returns the number of ranks.
        shuffle: True to use a different order in each epoch.
        seed: Seed of the order.
        filled: True if all ranks must make the same number of steps. A few samples (fewer than there are ranks) are
            then visited twice at the end of an epoch.
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
        self._order_of = -1
        self._completed = 0
        self._recorded = 0
        self._me, self._ranks = 0, 1
        self.own: list[int] = []
        """Samples that this rank has still to visit, in order."""
        self._begin(0, 0)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch. Call this when the previous epoch is over.

        If ``epoch`` is the current epoch and is partly completed, the completed samples are not visited again. If all
        its samples are completed, the epoch begins again.
        """
        under_way = epoch == self.epoch and 0 < self.processed_num < self.length
        self._begin(epoch, self.processed_num if under_way else 0)

    def record(self, samples: int) -> None:
        """Record that this rank has completed ``samples`` samples. All ranks must call this at the same steps."""
        self._recorded = min(self._recorded + samples, len(self.own))

    @property
    def processed_num(self) -> int:
        """Number of samples that all ranks together have completed in this epoch."""
        left, whole = self.length - self._completed, self._recorded >= len(self.own)
        return self._completed + completed(self._recorded, self._me, self._parts(), left, whole)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "processed_num": self.processed_num, "seed": self.seed, "length": self.length}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved position.

        Raises:
            ValueError: If the position is from a different dataset or seed.
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
        self._completed, self._recorded = processed, 0
        self._me, self._ranks = (ask() for ask in self._place)
        self.own = share_of_rank(self._order[processed:], self._me, self._parts(), self.filled)

    def _parts(self) -> Shares:
        """Return each rank's number of samples per round, for the current number of ranks."""
        return Shares.equal(self._ranks)


# The code below computes batch sizes for a changing number of ranks.
#
# There are two options. With a fixed batch size per rank, the global batch of a step grows and shrinks with the number
# of ranks. With a fixed ``global_batch``, training does not depend on the number of ranks. Each rank then processes a
# share of the global batch, in several passes if the share does not fit into its memory. Frontends provide the second
# option as ``batch_of_this_rank``.


@dataclass(frozen=True)
class Batch:
    """One rank's share of the global batch.

    In each step, the rank makes ``accumulation`` backward passes over ``size`` samples each. The last passes can be one
    sample smaller (see ``sizes``). Then gradients are averaged over the ranks.
    """

    global_batch: int
    ranks: int
    rank: int
    local: int
    """Samples of this rank per step."""
    accumulation: int
    """Backward passes per step, equal on all ranks."""
    shares: Shares
    """Shares of all ranks, for ``ElasticSampler``."""

    @property
    def size(self) -> int:
        """Number of samples in the largest backward pass.

        If all passes have the same size, use this number as the batch size of a DataLoader.
        """
        return self.sizes[0]

    @property
    def sizes(self) -> list[int]:
        """Number of samples in each accumulation pass. The numbers differ by at most one."""
        each, more = divmod(self.local, self.accumulation)
        return [each + (index < more) for index in range(self.accumulation)]

    @property
    def weight(self) -> float:
        """Factor by which to multiply the summed losses of this rank's samples.

        With this factor, gradients accumulated over passes and averaged over ranks equal those of the mean loss over
        the global batch. If a pass of n samples computes a mean loss, multiply the mean loss by n times this factor.
        """
        return self.ranks / self.global_batch

    def scale(self, samples: int) -> float:
        """Return the factor by which to multiply the mean loss of a pass over ``samples`` samples.

        The factor is 1 / accumulation if all ranks and passes are equal.
        """
        return samples * self.weight


def batch(global_batch: int, ranks: int, rank: int, most: int | None = None) -> Batch:
    """Return one rank's share of each step.

    If ``global_batch`` is not divisible by ``ranks``, the first ranks each get one extra sample.

    Args:
        global_batch: Samples of all ranks per step.
        ranks: Number of ranks.
        rank: Rank for which to compute the share.
        most: Maximum number of samples per pass that fit into a rank's memory. None means unlimited.

    Raises:
        ValueError: If there are more ranks than samples, if the batch cannot be divided into the same number of passes
            on all ranks, or if a number is below 1.
    """
    for name, value in (("global_batch", global_batch), ("ranks", ranks), ("most", 1 if most is None else most)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    if not 0 <= rank < ranks:
        raise ValueError(f"rank must be from 0 to {ranks - 1}, got {rank}")
    if global_batch < ranks:
        raise ValueError(
            f"global_batch must have at least one sample for each of {ranks} ranks, got {global_batch}; use a larger "
            "batch, or limit the ranks with --max-np (max_num_proc)"
        )
    each, more = divmod(global_batch, ranks)
    of = tuple(each + (index < more) for index in range(ranks))
    passes = 1 if most is None else -(-of[0] // most)
    passes = min(passes, of[-1])  # with more passes, some ranks would have no samples in a pass
    if most is not None and -(-of[0] // passes) > most:
        raise ValueError(
            f"global_batch {global_batch} on {ranks} ranks cannot be cut into equally many passes of at most {most} "
            "samples on all of them; a multiple of the ranks can"
        )
    return Batch(global_batch, ranks, rank, of[rank], passes, Shares(of))


class BatchOfThisRank(Protocol):
    """Type of ``hvd.elastic.batch``."""

    def __call__(self, global_batch: int, most: int | None = None) -> Batch: ...


def batch_of_this_rank(rank: Callable[[], int], size: Callable[[], int]) -> BatchOfThisRank:
    """Create ``hvd.elastic.batch`` from a frontend's ``rank`` and ``size`` functions."""

    def of_this_rank(global_batch: int, most: int | None = None) -> Batch:
        """Return this rank's share of a step whose global batch does not depend on the number of ranks.

        Call it again whenever the number of ranks changes.

        Args:
            global_batch: Samples of all ranks per step.
            most: Maximum number of samples per pass that fit into this rank's memory. None means unlimited.

        Raises:
            ValueError: If the batch cannot be divided.
        """
        return batch(global_batch, size(), rank(), most)

    of_this_rank.__name__ = of_this_rank.__qualname__ = "batch"
    return of_this_rank
