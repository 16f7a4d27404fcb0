"""Batch sizes for jobs whose number of ranks changes.

There are two options. With a fixed batch size per rank, the global batch of a step grows and shrinks with the number of
ranks. With a fixed ``global_batch``, training does not depend on the number of ranks. Each rank then processes a share
of the global batch, in several passes if the share does not fit into its memory. Frontends provide the second option as
``batch_of_this_rank``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from horovod.common.elastic.order import Shares


@dataclass(frozen=True)
class Batch:
    """One rank's share of the global batch.

    In each step, the rank makes ``accumulation`` backward passes. Each processes ``size`` samples, but the last passes
    can have one sample less, as ``sizes`` shows. Then gradients are averaged over the ranks.
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
        """Number of samples in the largest pass. Use it as a DataLoader's batch size if all passes are equal."""
        return self.sizes[0]

    @property
    def sizes(self) -> list[int]:
        """Numbers of samples in each pass, which differ by at most one."""
        each, more = divmod(self.local, self.accumulation)
        return [each + (index < more) for index in range(self.accumulation)]

    @property
    def weight(self) -> float:
        """Factor by which to multiply the summed losses of this rank's samples.

        With this factor, the gradients accumulated over passes and averaged over ranks are those of the mean loss over
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
        rank: Rank whose share to return.
        most: Maximum number of samples per pass that fit into a rank's memory. None: unlimited.

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
    passes = min(passes, of[-1])  # otherwise a rank would have an empty pass
    if most is not None and -(-of[0] // passes) > most:
        raise ValueError(
            f"global_batch {global_batch} on {ranks} ranks cannot be cut into equally many passes of at most {most} "
            "samples on all of them; a multiple of the ranks can"
        )
    return Batch(global_batch, ranks, rank, of[rank], passes, Shares(of))


class BatchOfThisRank(Protocol):
    """Type of the function ``hvd.elastic.batch``."""

    def __call__(self, global_batch: int, most: int | None = None) -> Batch: ...


def batch_of_this_rank(rank: Callable[[], int], size: Callable[[], int]) -> BatchOfThisRank:
    """Create a frontend's function ``hvd.elastic.batch`` from the frontend's ``rank`` and ``size`` functions."""

    def of_this_rank(global_batch: int, most: int | None = None) -> Batch:
        """Return this rank's share of a step whose global batch does not depend on the number of ranks.

        Call it again after each change of the number of ranks.

        Args:
            global_batch: Samples of all ranks per step.
            most: Maximum number of samples per pass that fit into this rank's memory. None: unlimited.

        Raises:
            ValueError: If the batch cannot be divided.
        """
        return batch(global_batch, size(), rank(), most)

    of_this_rank.__name__ = of_this_rank.__qualname__ = "batch"
    return of_this_rank
