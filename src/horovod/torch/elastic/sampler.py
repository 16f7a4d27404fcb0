"""Sampler that can continue an epoch after the number of ranks has changed."""

from collections.abc import Iterator, Sized
from typing import Any

import torch
import torch.utils.data

from horovod.common.elastic.order import Shares, completed, share_of_rank
from horovod.torch.mpi_ops import rank, size


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Sampler that distributes the unprocessed samples of an epoch over the ranks.

    The program records what it has processed::

        for epoch in range(state.epoch, epochs):
            for index, (data, target) in enumerate(loader):     # DataLoader(dataset, batch_size, sampler=sampler)
                ...
                optimizer.step()
                state.sampler.record_batch(index, batch_size)
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)

    Each sample is visited once per epoch, however often ranks join or leave. To give all ranks the same number of
    steps, up to size() - 1 samples are visited twice at the end. With ``filled=False`` this is not done, and the
    program must call ``hvd.join()`` if ranks have different numbers of samples. Any number of remaining samples is
    supported, including none.

    Args:
        dataset (Sized): Any object with a length.
        shuffle (bool): Use a new order in each epoch, the same on all ranks. Default: True.
        seed (int): Random seed of the order. Default: 0.
        filled (bool): Give all ranks the same number of samples. Default: True.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0, *, filled: bool = True) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.filled = filled
        self.epoch = 0
        self._order: list[int] = []
        # Epoch and dataset length for which the current sample order was computed.
        self._order_of = (-1, -1)
        # Number of samples at the start of ``_order`` that were already processed when samples were last distributed
        # over the ranks.
        self._done = 0
        # Number of samples that this rank has recorded since samples were last distributed over the ranks.
        self._recorded = 0
        self._shares: Shares | None = None
        self._mine: list[int] = []
        # State of the sampler when the current loop over the DataLoader began, and the samples that the loop visits.
        self._loop: tuple[Any, list[int]] = ((), [])
        # Number of samples recorded in the current loop over the loader.
        self._in_loop = 0
        # Index of this rank's first sample in the current loop's samples. A negative value, such as -3, means that the
        # loop began after this rank's first 3 samples.
        self._ahead = 0
        self.rank = 0
        self.num_replicas = 1
        self._begin(0, 0)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch with all samples unprocessed.

        Call this when the previous epoch is over. A call with the number of the current epoch keeps the recorded
        samples, which is safe at the start of a resumed epoch. It restarts the epoch if all samples are processed.

        Args:
            epoch (int): Number of the epoch.
        """
        processed = self.processed_num
        under_way = (epoch, len(self.dataset)) == self._order_of and 0 < processed < len(self._order)
        self._begin(epoch, processed if under_way else 0)

    def set_shares(self, shares: Shares | None) -> None:
        """Give each rank the share of the samples computed by ``hvd.elastic.batch``.

        Args:
            shares (Shares, optional): Share of the samples for each rank. None restores equal shares.

        Raises:
            ValueError: If ``shares`` was computed for another number of ranks.
        """
        if shares is not None and len(shares.of) != size():
            raise ValueError(f"shares must have one share for each of the job's {size()} ranks, got {len(shares.of)}")
        self._settle()
        self._shares = shares
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that a batch has been processed.

        Call this after the optimizer's step. All ranks must record the same batches.

        A loop over the loader that is in progress may continue after ``load_state_dict`` or ``state.restore()``. It
        does not visit earlier batches again, so batches between the restored position and the next recorded one count
        as processed.

        Args:
            batch_idx (int): Index of the batch in the current loop over the loader.
            batch_size (int): Samples per batch on this rank.
        """
        recorded = (batch_idx + 1) * batch_size
        # A batch index that has not increased since the last call means that a new loop over the loader has begun.
        if recorded <= self._in_loop:
            self._ahead = 0
        self._in_loop = recorded
        self._recorded = min(max(self._recorded, recorded - self._ahead), len(self._mine))

    def record_indices(self, indices: Any) -> None:
        """Record that this rank has processed its next ``len(indices)`` samples.

        Args:
            indices (Sized): Indices of the samples. Only the length is used.
        """
        self._recorded = min(self._recorded + len(indices), len(self._mine))

    @property
    def processed_num(self) -> int:
        """Number of samples of this epoch that all ranks together have processed."""
        whole = self._recorded >= len(self._mine)
        left = len(self._order) - self._done
        return self._done + completed(self._recorded, self.rank, self._parts(), left, whole)

    @property
    def place(self) -> tuple[int, int, int]:
        """Value that changes with each recorded batch. Used to detect progress."""
        return self.epoch, self._done, self._recorded

    @property
    def processed_indices(self) -> list[int]:
        """Indices of the processed samples."""
        return self._order[: self.processed_num]

    @property
    def remaining_indices(self) -> list[int]:
        """Indices of the samples that were unprocessed when samples were last distributed over the ranks."""
        return self._order[self._done :]

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's state, which any rank can load in a job with any number of ranks."""
        return {"epoch": self.epoch, "processed_num": self.processed_num, "seed": self.seed, "length": len(self._order)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a saved state, and distribute the remaining samples over the current ranks.

        Raises:
            ValueError: If the state belongs to a different dataset or seed.
        """
        for name, here in (("seed", self.seed), ("length", len(self.dataset))):
            if state_dict.get(name, here) != here:
                raise ValueError(f"state_dict must be of a sampler with {name} {here}, got {name} {state_dict[name]}")
        self._begin(state_dict["epoch"], state_dict["processed_num"])
        about, samples = self._loop
        self._ahead = _ahead(samples, self._mine) if self._in_loop and about == self._about() else 0

    def _about(self) -> tuple[Any, ...]:
        return *self._order_of, self.rank, self._parts()

    def _begin(self, epoch: int, processed: int) -> None:
        length = len(self.dataset)
        # Keep the current order if possible, because reshuffling takes 1 s per million samples, too long for a
        # recovery.
        if (epoch, length) != self._order_of:
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
        """Distribute the unprocessed samples over the current ranks.

        Start a new loop over the loader after this call.
        """
        self._settle()
        self.rank, self.num_replicas = rank(), size()
        if self._shares is not None and len(self._shares.of) != self.num_replicas:
            self._shares = None
        self._mine = share_of_rank(self.remaining_indices, self.rank, self._parts(), self.filled)

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


def _ahead(loop: list[int], own: list[int]) -> int:
    """Return the index in ``loop`` at which the samples of ``own`` begin.

    If ``loop`` begins later in ``own``, the result is negative: minus the number of samples of ``own`` that ``loop``
    omits.
    """
    if not loop or not own:
        return len(loop) - len(own)
    if own[0] in loop:
        return loop.index(own[0])
    return -own.index(loop[0]) if loop[0] in own else 0
