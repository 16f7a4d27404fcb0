"""Batch sizes of a job whose number of ranks changes. Pure.

The batch per rank may stay as it is, so that the batch of a step grows and shrinks with the ranks. Or the batch of a
step stays (``global_batch``), and with it the training: each rank then gets a part, in several passes where the
part does not fit into its memory. Faces offer ``batch_of_this_rank``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from horovod.common.elastic.order import Shares


@dataclass(frozen=True)
class Batch:
    """What one rank does for a step: ``accumulation`` backward passes over ``size`` samples each (the last may have
    fewer: ``sizes``), after which gradients are averaged over the ranks."""

    global_batch: int
    ranks: int
    rank: int
    local: int
    """Samples of this rank in a step."""
    accumulation: int
    """Backward passes in a step, equal on all ranks."""
    shares: Shares
    """Of all ranks, for ``ElasticSampler``."""

    @property
    def size(self) -> int:
        """Samples of the largest pass, what a DataLoader is given where all passes are equal."""
        return self.sizes[0]

    @property
    def sizes(self) -> list[int]:
        """Samples of each pass; they differ by one at most."""
        each, more = divmod(self.local, self.accumulation)
        return [each + (index < more) for index in range(self.accumulation)]

    @property
    def weight(self) -> float:
        """By what the sum of the losses of a rank's samples is to be multiplied, so that the average over the ranks of
        what the ranks' passes add up is the mean over the samples of the global batch: with the mean of a pass of n
        samples, multiply by n times this."""
        return self.ranks / self.global_batch

    def scale(self, samples: int) -> float:
        """By what the mean loss of a pass over so many samples is to be multiplied; 1 / accumulation where all ranks
        and passes are equal."""
        return samples * self.weight


def batch(global_batch: int, ranks: int, rank: int, most: int | None = None) -> Batch:
    """This rank's part of each step. ``most``: samples that fit into a rank's memory at a time; None: any number.

    The first ranks get one more where the batch does not divide by ``ranks``. Raises ValueError when there are more
    ranks than samples, and for numbers below 1.
    """
    for name, value in (("global_batch", global_batch), ("ranks", ranks), ("most", 1 if most is None else most)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value!r}, accepted is an integer of at least 1")
    if not 0 <= rank < ranks:
        raise ValueError(f"rank is {rank}, accepted is 0 to {ranks - 1}")
    if global_batch < ranks:
        raise ValueError(
            f"global_batch is {global_batch}, but the job has {ranks} ranks; accepted is at least a sample for each. "
            "--max-np (max_num_proc) limits the ranks"
        )
    each, more = divmod(global_batch, ranks)
    of = tuple(each + (index < more) for index in range(ranks))
    passes = 1 if most is None else -(-of[0] // most)
    passes = min(passes, of[-1])  # nobody makes a pass over nothing
    if most is not None and -(-of[0] // passes) > most:
        raise ValueError(
            f"global_batch {global_batch} on {ranks} ranks cannot be cut into equally many passes of at most {most} "
            "samples on all of them; a multiple of the ranks can"
        )
    return Batch(global_batch, ranks, rank, of[rank], passes, Shares(of))


class BatchOfThisRank(Protocol):
    """``hvd.elastic.batch``."""

    def __call__(self, global_batch: int, most: int | None = None) -> Batch: ...


def batch_of_this_rank(rank: Callable[[], int], size: Callable[[], int]) -> BatchOfThisRank:
    """``batch`` of a face. ``rank``, ``size``: the face's."""

    def of_this_rank(global_batch: int, most: int | None = None) -> Batch:
        """What this rank does of a step whose batch is the same whatever the number of ranks is: ask again after each
        change of them. ``most``: samples that fit into its memory. Raises ValueError for what cannot be shared."""
        return batch(global_batch, size(), rank(), most)

    of_this_rank.__name__ = of_this_rank.__qualname__ = "batch"
    return of_this_rank
