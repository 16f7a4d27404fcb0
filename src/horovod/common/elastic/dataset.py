"""ElasticDataset: batches for each rank of a job whose members change."""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from horovod.common.elastic.batch import batch
from horovod.common.elastic.order import Shares
from horovod.common.elastic.samples import samples_of
from horovod.common.elastic.walk import Walk


class ElasticDataset(Walk):
    """Batches of this rank's share of an epoch.

    Pass it to a state as an attribute::

        data = hvd.elastic.ElasticDataset((images, labels), batch_size=32)
        state = hvd.elastic.TensorFlowState(variables, data=data)

        @hvd.elastic.run
        def train(state):
            while state.data.epoch < epochs:
                for images, labels in state.data:
                    step(images, labels)
                    state.data.record()                 # this batch is done
                    state.commit()
                state.data.set_epoch(state.data.epoch + 1)

    Each sample is visited once per epoch, however the members change. All ranks make equally many steps. For that, a
    few samples (fewer than there are ranks) are visited twice at the end of an epoch.
    """

    _place_of: ClassVar[tuple[Callable[[], int], Callable[[], int]]]
    """``rank`` and ``size`` of the frontend."""

    def __init__(
        self,
        source: Any,
        batch_size: int | None = None,
        shuffle: bool | int = True,
        seed: int = 0,
        *,
        global_batch: int | None = None,
        prepare: Callable[[Any], Any] | None = None,
    ) -> None:
        """Create the dataset for this rank.

        Each rank reads a ``tf.data.Dataset`` completely and drops the samples of other ranks. So put expensive
        transformations into ``prepare``.

        Args:
            source: Arrays with equal first dimensions, arbitrarily nested in tuples, lists or dicts. Or an integer n,
                for batches of indices below n. Or a ``tf.data.Dataset`` of single samples (not batches), finite and
                with the same order each time, for batches of TensorFlow tensors; if its length is unknown, it is
                counted once.
            batch_size: Samples per rank and step. The last batch of an epoch may have fewer.
            shuffle: True: a different order in each epoch, equal on all ranks, derived from ``seed``. For a
                ``tf.data.Dataset`` also the size of the shuffle buffer (True: all samples).
            seed: Seed of the order.
            global_batch: Samples of all ranks per step, instead of ``batch_size``, independent of the number of ranks
                (``hvd.elastic.batch``). The attribute ``batch_size`` is then this rank's current share.
            prepare: For a ``tf.data.Dataset``: gets the dataset of this rank's samples and returns one of the same
                length.

        Raises:
            ValueError: If array lengths differ, if a ``tf.data.Dataset`` is infinite, if ``batch_size`` is below 1, or
                if ``global_batch`` has fewer samples than there are ranks (checked now and after changes of the ranks).
        """
        given = batch_size if global_batch is None else global_batch
        if (batch_size is None) == (global_batch is None) or isinstance(given, bool) or not isinstance(given, int):
            raise ValueError(
                f"one of batch_size and global_batch must be an integer, got {batch_size!r} and {global_batch!r}"
            )
        if given < 1:
            name = "batch_size" if global_batch is None else "global_batch"
            raise ValueError(f"{name} must be an integer of at least 1, got {given}")
        self.batch_size = given
        self._global_batch = global_batch
        self._samples = samples_of(source, shuffle, seed, prepare)
        rank, size = self._place_of
        super().__init__(self._samples.length, rank, size, bool(shuffle) and not self._samples.shuffles, seed)

    def on_batch_end(self, batches: int = 1) -> None:
        """Record ``batches`` batches; after the last batch of an epoch, begin the next epoch."""
        self.record(batches * self.batch_size)
        if not len(self):
            self.set_epoch(self.epoch + 1)

    def _parts(self) -> Shares:
        if self._global_batch is None:
            return super()._parts()
        share = batch(self._global_batch, self._ranks, self._me)
        self.batch_size = share.local
        return share.shares

    def __len__(self) -> int:
        """Return how many batches of the epoch this rank has left; equal on all ranks."""
        return -(-(len(self.mine) - self._recorded) // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the rest of the epoch."""
        return self._samples.batches(self.mine[self._recorded :], self.batch_size, self.epoch)

    def record(self, samples: int | None = None) -> None:
        """Record that ``samples`` samples (default: one batch) are done.

        Call it after the step and before the commit.
        """
        super().record(self.batch_size if samples is None else samples)
