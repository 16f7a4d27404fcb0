"""One rank's way through an epoch that goes on where it was when the members of the job change: ``order``, with what a
rank remembers of it. No framework.
"""

from collections.abc import Callable, Sequence
from typing import Any

from horovod.common.elastic.order import Shares, done, mine, permutation


class Resumes:
    """What states save, restore and bring together by its ``state_dict``, which is the same on all ranks, and of which
    each rank keeps its own object."""

    def state_dict(self) -> dict[str, Any]:
        """Of any rank for all ranks, and for any number of them."""
        raise NotImplementedError

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from there with the present members."""
        raise NotImplementedError

    def reset(self) -> None:
        """The members have changed."""
        raise NotImplementedError


class Walk(Resumes):
    """Through ``length`` samples. ``rank``, ``size``: of the face. ``filled``: ranks take equally many steps, for which
    fewer samples than there are ranks are visited a second time at the end of an epoch."""

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
        self._order_of = -1  # epoch
        self._done = 0  # of the order, when members were shared out last
        self._recorded = 0  # of this rank's own since then
        self._me, self._ranks = 0, 1
        self.mine: list[int] = []
        """What this rank visits from here on, in its order."""
        self._begin(0, 0)

    def set_epoch(self, epoch: int) -> None:
        """An epoch begins, with nothing done. To be called when one is over; where it is called as an epoch's loop
        begins, with the number of the epoch that is under way, what has been recorded of that stays done. When all of
        it is done, the same number begins it anew."""
        under_way = epoch == self.epoch and 0 < self.processed_num < self.length
        self._begin(epoch, self.processed_num if under_way else 0)

    def record(self, samples: int) -> None:
        """So many more of ``mine`` are done; all ranks say so in the same steps."""
        self._recorded = min(self._recorded + samples, len(self.mine))

    @property
    def processed_num(self) -> int:
        """How many samples of the epoch are done, by all ranks."""
        left, whole = self.length - self._done, self._recorded >= len(self.mine)
        return self._done + done(self._recorded, self._me, self._parts(), left, whole)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "processed_num": self.processed_num, "seed": self.seed, "length": self.length}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raises ValueError when it is of another dataset or seed."""
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
        """Of the present ranks."""
        return Shares.equal(self._ranks)
