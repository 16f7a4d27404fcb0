"""Position of one rank in an epoch, which is kept when the members of the job change. Uses ``order``."""

from collections.abc import Callable, Sequence
from typing import Any

from horovod.common.elastic.order import Shares, done, mine, permutation


class Resumes:
    """Object that states save, restore and synchronize through its ``state_dict``.

    The ``state_dict`` is the same on all ranks, while each rank keeps its own object.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the position, valid on all ranks and for any number of ranks."""
        raise NotImplementedError

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved position with the current members."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt to changed members."""
        raise NotImplementedError


class Walk(Resumes):
    """Position in a sequence of ``length`` samples.

    Args:
        length: Number of samples.
        rank: ``rank`` of the frontend.
        size: ``size`` of the frontend.
        shuffle: If True, use a different order in each epoch.
        seed: Seed of the order.
        filled: If True, ranks make equally many steps; a few samples (fewer than there are ranks) are visited twice at
            the end of an epoch.
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
        self._order_of = -1  # epoch of `_order`
        self._done = 0  # samples done when they were last divided among ranks
        self._recorded = 0  # samples of this rank recorded since then
        self._me, self._ranks = 0, 1
        self.mine: list[int] = []
        """Samples that this rank visits from here on, in order."""
        self._begin(0, 0)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; call it when the previous one is over.

        If it is called with the number of the current, partly completed epoch, recorded samples stay done. If that
        epoch is complete, it begins again.
        """
        under_way = epoch == self.epoch and 0 < self.processed_num < self.length
        self._begin(epoch, self.processed_num if under_way else 0)

    def record(self, samples: int) -> None:
        """Record that ``samples`` more of ``mine`` are done; all ranks do so in the same steps."""
        self._recorded = min(self._recorded + samples, len(self.mine))

    @property
    def processed_num(self) -> int:
        """Number of samples of the epoch that all ranks together have done."""
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
