"""Dataset that splits a source's records among a varying number of ranks."""

import bisect
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

from horovod.common.elastic.order import Resumes
from horovod.common.frontends import state
from horovod.common.training_loop.steps import marks
from horovod.data import order as parts
from horovod.data.loader import counted
from horovod.data.order import Order
from horovod.data.source import Source, check_count, rank_suffix


def _rank() -> int:
    return state.require_job().rank


def _size() -> int:
    return state.require_job().size


class StreamingDataset(Resumes):
    """Iterates over the batches of this rank's share of an epoch. Files can be larger than memory.

    Example::

        data = StreamingDataset(ParquetFiles("train/"), batch_size=64, seed=1)
        state = hvd.elastic.TorchState(model, optimizer, data=data)     # other frontends have other states

        @hvd.elastic.run
        def train(state):
            while state.data.epoch < epochs:
                for batch in ReadAhead(state.data):
                    step(batch)
                    state.data.record()                 # this batch is done
                    state.commit()
                state.data.set_epoch(state.data.epoch + 1)

    The dataset also works without elastic training.

    Each record is visited once per epoch, for any number of ranks, even if the number changes. All ranks take equally
    many steps. To make that possible, a few records (fewer than there are ranks) are visited twice at the end of an
    epoch. A rank reads its files sequentially. Other ranks read at most its first and its last file too.

    A dataset can be pickled if ``rank`` and ``size`` can be pickled. In another process, it keeps the share of the rank
    that pickled it until ``reset`` is called.
    """

    def __init__(
        self,
        source: Source,
        batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
        *,
        mix: int = 1,
        rank: Callable[[], int] | None = None,
        size: Callable[[], int] | None = None,
    ) -> None:
        """Create the dataset for this rank.

        Args:
            source: Source of records, which must be the same on all ranks.
            batch_size: Records per rank and step. The last batch of an epoch can have fewer.
            shuffle: True to use a different order in each epoch, derived from ``seed`` and equal on all ranks.
            seed: Seed of the order, from 0 to 2**64 - 1.
            mix: Number of blocks that are mixed at a time and kept in memory.
            rank: Function that returns the rank. Default: the rank in this process's job.
            size: Function that returns the number of ranks. Default: the size of this process's job.

        Raises:
            ValueError: If ``batch_size`` or ``mix`` is below 1, or if ``rank`` and ``size`` are missing outside a job.
        """
        self.batch_size = check_count("batch_size", batch_size, 1)
        self.mix = check_count("mix", mix, 1)
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 64:
            raise ValueError(f"seed must be an integer from 0 to 2**64 - 1, got {seed!r}{rank_suffix()}")
        self.source, self.shuffle, self.seed = source, shuffle, seed
        self.epoch = 0
        self._length = sum(source.lengths)
        self._digest = source.digest()
        self._place = rank or _rank, size or _size
        self._order: tuple[int, Order] | None = None
        # The epoch's unprocessed records at the time of the last split among the ranks.
        self._left: parts.Intervals = ()
        self._me, self._ranks = 0, 1
        # Number of records that this rank has yielded since the last split, and how many of them are recorded as
        # processed.
        self._steps = self._recorded = 0
        self._share_out(self._all())
        marks.data_seen = True

    def __len__(self) -> int:
        """Return the number of batches that remain in the epoch, which is equal on all ranks."""
        return -(-(self._steps - self._recorded) // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches that remain in the epoch."""
        return self.batches()

    def batches(self, worker: int = 0, workers: int = 1) -> Iterator[Any]:
        """Iterate over every ``workers``-th remaining batch of the epoch, starting with batch ``worker``.

        Use this if several processes load one rank's batches, such as the workers of PyTorch's DataLoader, which takes
        batches from its workers in turn. The set of remaining batches is fixed when this is called, not when the first
        batch is requested.

        Returns:
            Iterator[Any]: The batches.

        Raises:
            ValueError: If ``worker`` is not below ``workers``.
        """
        check_count("workers", workers, 1)
        if check_count("worker", worker, 0) >= workers:
            raise ValueError(f"worker must be an integer below workers, {workers}, got {worker}{rank_suffix()}")
        mine = list(parts.run(self._left, self._me, self._ranks))
        more = parts.extra(self._left, self._me, self._ranks)
        if more is not None:
            mine.append((more, more + 1))
        begins = range(self._recorded + worker * self.batch_size, self._steps, workers * self.batch_size)
        return self._read(self._order_now(), tuple(mine), begins, self.batch_size)

    def record(self, samples: int | None = None) -> None:
        """Record that ``samples`` records have been processed. Default: one batch.

        Call this after the step and before the commit, at the same step on all ranks.
        """
        samples = self.batch_size if samples is None else check_count("samples", samples, 0)
        self._recorded = min(self._recorded + samples, self._steps)

    def on_batch_end(self, batches: int = 1) -> None:
        """Record ``batches`` processed batches. If the epoch is then complete, start the next epoch.

        Keras' ``UpdateDatasetCallback`` calls this.
        """
        self.record(batches * self.batch_size)
        if not len(self):
            self.set_epoch(self.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Begin the epoch with the given number.

        If this is the current epoch and it is partly processed, the record of processed batches is kept. If it is
        complete, the epoch starts over.
        """
        under_way = epoch == self.epoch and 0 < self.processed_num < self._length
        left = self._remaining_now() if under_way else self._all()
        self.epoch = check_count("epoch", epoch, 0)
        self._share_out(left)

    @property
    def processed_num(self) -> int:
        """Number of this epoch's records that all ranks together have processed."""
        return self._length - parts.count(self._remaining_now())

    def state_dict(self) -> dict[str, Any]:
        left = [list(pair) for pair in self._remaining_now()]
        return {"epoch": self.epoch, "left": left, **self._same()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved position. Raises ValueError if the position belongs to a different source or order."""
        for name, here in self._same().items():
            if state_dict.get(name, here) != here:
                words = f" (a digest of {self.source.digest_of})" if name == "source" else ""
                raise ValueError(
                    f"state_dict must be of a stream with {name} {here!r}{words}, got {state_dict[name]!r}"
                    f"{rank_suffix()}"
                )
        left = parts.checked(state_dict["left"], self._length)
        self.epoch = check_count("epoch", state_dict["epoch"], 0)
        self._share_out(left)

    def reset(self) -> None:
        self._share_out(self._remaining_now())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_order": None}  # recompute the order instead of pickling it

    def _same(self) -> dict[str, Any]:
        """Return the properties that must match for a saved position to be usable."""
        same = {"length": self._length, "source": self._digest, "shuffle": self.shuffle, "seed": self.seed}
        return {**same, "mix": self.mix}

    def _all(self) -> parts.Intervals:
        return ((0, self._length),) if self._length else ()

    def _remaining_now(self) -> parts.Intervals:
        return parts.rest(self._left, self._ranks, self._recorded) if self._recorded else self._left

    def _share_out(self, remaining: parts.Intervals) -> None:
        self._me, self._ranks = (ask() for ask in self._place)
        self._left, self._recorded = remaining, 0
        self._steps = parts.steps(remaining, self._ranks)

    def _order_now(self) -> Order:
        if self._order is None or self._order[0] != self.epoch:
            source = self.source
            made = Order(source.lengths, self.shuffle, self.seed, self.epoch, self.mix, source.chains)
            self._order = self.epoch, made
        return self._order[1]

    def _read(self, order: Order, own: parts.Intervals, begins: range, step: int) -> Iterator[Any]:
        with self.source.walk() as load:
            held = _Cached(self.source, load)
            for begin in begins:
                places = parts.section(own, begin, begin + step)
                yield counted(lambda places=places: held.batch(order, places))  # type: ignore[misc]


class _Cached:
    """Cache of the loaded blocks of the current window."""

    def __init__(self, source: Source, load: Callable[[int], Any]) -> None:
        self._source, self._load = source, load
        self._firsts = [end - count for count, end in zip(source.chains, accumulate(source.chains), strict=True)]
        self._window = -1
        self._blocks: dict[int, Any] = {}

    def batch(self, order: Order, places: parts.Intervals) -> Any:
        chosen = []
        for window, block, inside in (piece for begin, end in places for piece in order.pieces(begin, end)):
            if window != self._window:
                self._window = window
                self._blocks.clear()
            if block not in self._blocks:
                self._hold(block, order.window(window))
            chosen.append((self._blocks[block], inside))
        return self._source.gather(chosen)

    def _hold(self, block: int, window: tuple[int, ...]) -> None:
        """Load a block. If it belongs to a chain, first load the blocks before it in the chain that are in the window.

        The blocks of a chain can only be read in order. The program needs the earlier blocks later anyway.
        """
        first = self._firsts[bisect.bisect_right(self._firsts, block) - 1] if self._firsts else block
        for one in range(first, block + 1):
            if one in window and one not in self._blocks:
                self._blocks[one] = self._load(one)
