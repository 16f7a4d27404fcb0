"""ElasticSampler: a sampler whose epoch goes on where it was when the number of ranks changes."""

from collections.abc import Iterator, Sized
from typing import Any

import torch
import torch.utils.data

from horovod.common.elastic.order import Shares, done, mine
from horovod.torch.mpi_ops import rank, size


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Gives each rank its samples of an epoch, those that are not done yet. A program tells what is done::

        for epoch in range(state.epoch, epochs):
            for index, (data, target) in enumerate(loader):     # DataLoader(dataset, batch_size, sampler=sampler)
                ...
                optimizer.step()
                state.sampler.record_batch(index, batch_size)
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)

    Over any changes of members each sample is visited once in an epoch. So that ranks take equally many steps, fewer
    samples than there are ranks are visited a second time at its end, unless ``filled`` is False; then ``hvd.join()``
    is needed where ranks differ. Works for any number of samples that are left, down to none.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0, *, filled: bool = True) -> None:
        """``dataset``: anything with a length. ``shuffle``: another order in each epoch, equal on all ranks, which
        follows from ``seed``."""
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.filled = filled
        self.epoch = 0
        self._order: list[int] = []
        self._order_of = (-1, -1)  # epoch, length
        self._done = 0  # of the order, when members were shared out last
        self._recorded = 0  # of this rank's own since then
        self._shares: Shares | None = None
        self._mine: list[int] = []
        self._loop: tuple[Any, list[int]] = ((), [])  # what the running loop is about, and its samples
        self._in_loop = 0  # samples of it that are recorded
        self._ahead = 0  # of its samples, those that are before the first of `_mine`; below 0: they are missing in it
        self.rank = 0
        self.num_replicas = 1
        self._begin(0, 0)

    def set_epoch(self, epoch: int) -> None:
        """An epoch begins, with nothing done. To be called when one is over; where it is called as an epoch's loop
        begins, with the number of the epoch that is under way, what has been recorded of that stays done. When all of
        it is done, the same number begins it anew."""
        processed = self.processed_num
        under_way = (epoch, len(self.dataset)) == self._order_of and 0 < processed < len(self._order)
        self._begin(epoch, processed if under_way else 0)

    def set_shares(self, shares: Shares | None) -> None:
        """Other parts than equal ones, as ``hvd.elastic.batch`` says. None: equal ones again. Raises ValueError when
        they are not for the present number of ranks."""
        if shares is not None and len(shares.of) != size():
            raise ValueError(f"shares are for {len(shares.of)} ranks, but the job has {size()}")
        self._settle()
        self._shares = shares
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """The batch of this index, counted since the loop over the loader began, is done: after the optimizer's step.
        All ranks record the same batches.

        A loop may go on after ``load_state_dict`` (``state.restore()``). Its batches between the place that was gone
        back to and the next one that is recorded count as done, because the loop will not visit them again.
        """
        recorded = (batch_idx + 1) * batch_size
        if recorded <= self._in_loop:  # not the next one of that loop: another has begun
            self._ahead = 0
        self._in_loop = recorded
        self._recorded = min(max(self._recorded, recorded - self._ahead), len(self._mine))

    def record_indices(self, indices: Any) -> None:
        """So many more samples of this rank are done, in the order in which it visits them."""
        self._recorded = min(self._recorded + len(indices), len(self._mine))

    @property
    def processed_num(self) -> int:
        """How many samples of the epoch are done, by all ranks."""
        whole = self._recorded >= len(self._mine)
        left = len(self._order) - self._done
        return self._done + done(self._recorded, self.rank, self._parts(), left, whole)

    @property
    def place(self) -> tuple[int, int, int]:
        """Changes with each batch that is recorded; cheap."""
        return self.epoch, self._done, self._recorded

    @property
    def processed_indices(self) -> list[int]:
        """Those samples."""
        return self._order[: self.processed_num]

    @property
    def remaining_indices(self) -> list[int]:
        """The samples that were not done when they were shared out last: what ``len`` and iterating are about."""
        return self._order[self._done :]

    def state_dict(self) -> dict[str, Any]:
        """Of any rank for all ranks, and for any number of them."""
        return {"epoch": self.epoch, "processed_num": self.processed_num, "seed": self.seed, "length": len(self._order)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from there with the present members. Raises ValueError when it is of another dataset or seed."""
        for name, here in (("seed", self.seed), ("length", len(self.dataset))):
            if state_dict.get(name, here) != here:
                raise ValueError(f"the sampler's state has {name} {state_dict[name]}, this sampler {here}")
        self._begin(state_dict["epoch"], state_dict["processed_num"])
        about, samples = self._loop
        self._ahead = _ahead(samples, self._mine) if self._in_loop and about == self._about() else 0

    def _about(self) -> tuple[Any, ...]:
        return *self._order_of, self.rank, self._parts()

    def _begin(self, epoch: int, processed: int) -> None:
        length = len(self.dataset)
        if (epoch, length) != self._order_of:  # a second for a million samples, and failures are to cost little
            self._order = self._shuffled(length, epoch) if self.shuffle else list(range(length))
            self._order_of = epoch, length
        self.epoch = epoch
        self._done = min(processed, length)
        self._recorded = 0
        self._mine = []
        self.reset()

    def _shuffled(self, length: int, epoch: int) -> list[int]:
        generator = torch.Generator("cpu").manual_seed(self.seed + epoch)
        made: list[int] = torch.randperm(length, generator=generator, device="cpu").tolist()
        return made

    def reset(self) -> None:
        """Shares out what is not done among the present members. Loops over a loader begin anew after it."""
        self._settle()
        self.rank, self.num_replicas = rank(), size()
        if self._shares is not None and len(self._shares.of) != self.num_replicas:
            self._shares = None
        self._mine = mine(self.remaining_indices, self.rank, self._parts(), self.filled)

    def _settle(self) -> None:
        self._done = self.processed_num
        self._recorded = 0
        self._mine = []

    def _parts(self) -> Shares:
        return self._shares if self._shares is not None else Shares.equal(self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        self._loop = self._about(), list(self._mine)
        self._in_loop = self._ahead = 0
        return iter(self._loop[1])

    def __len__(self) -> int:
        return len(self._mine)


def _ahead(loop: list[int], mine: list[int]) -> int:
    """Return how many samples of the loop are before the first of ``mine``; below 0 where it began later."""
    if not loop or not mine:
        return len(loop) - len(mine)
    if mine[0] in loop:
        return loop.index(mine[0])
    return -mine.index(loop[0]) if loop[0] in mine else 0
