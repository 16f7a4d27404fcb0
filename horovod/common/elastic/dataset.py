"""ElasticDataset: batches for each rank, over any changes of members."""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from horovod.common.elastic.batch import batch
from horovod.common.elastic.order import Shares
from horovod.common.elastic.samples import samples_of
from horovod.common.elastic.walk import Walk


class ElasticDataset(Walk):
    """Gives each rank its batches of an epoch, of what is not done yet. Give it to a state as an attribute::

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

    Over any changes of members each sample is visited once in an epoch. So that ranks take equally many steps, fewer
    samples than there are ranks are visited a second time at its end.
    """

    _place_of: ClassVar[tuple[Callable[[], int], Callable[[], int]]]
    """``rank`` and ``size`` of the face."""

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
        """``source``: arrays whose first dimensions are equal, one or several in tuples, lists or dicts, however
        nested; or an integer, for batches of indices below it; or a ``tf.data.Dataset`` of samples, not of batches,
        which has an end and the same order each time, for batches of TensorFlow's tensors. ``batch_size``: samples of a
        rank and step; the last batch of an epoch may have fewer. ``global_batch``, in its place: samples of all ranks
        in a step, whatever the number of ranks is (``hvd.elastic.batch``); ``batch_size`` is then what is this rank's
        now. ``shuffle``: another order in each epoch, equal on all ranks, which follows from ``seed``.

        Of a ``tf.data.Dataset`` each rank reads all, and leaves out what is not its own. So what takes time belongs
        into ``prepare``, which is given that of this rank's samples and returns one of as many. ``shuffle`` may be the
        number of samples in memory from which the next one is drawn (True: all). What does not know how many samples it
        has is counted once.

        Raises ValueError for arrays of other lengths, naming them, for a ``tf.data.Dataset`` without an end, for a
        ``batch_size`` below 1, and now or when ranks change for a ``global_batch`` of fewer samples than there are
        ranks.
        """
        given = batch_size if global_batch is None else global_batch
        if (batch_size is None) == (global_batch is None) or isinstance(given, bool) or not isinstance(given, int):
            both = f"batch_size is {batch_size!r} and global_batch {global_batch!r}"
            raise ValueError(f"{both}, accepted is an integer for one of them")
        if given < 1:
            name = "batch_size" if global_batch is None else "global_batch"
            raise ValueError(f"{name} is {given}, accepted is an integer of at least 1")
        self.batch_size = given
        self._global_batch = global_batch
        self._samples = samples_of(source, shuffle, seed, prepare)
        rank, size = self._place_of
        super().__init__(self._samples.length, rank, size, bool(shuffle) and not self._samples.shuffles, seed)

    def on_batch_end(self, batches: int = 1) -> None:
        """``record`` of so many batches; after the last one of an epoch the next epoch begins."""
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
        """Batches that are left of the epoch for this rank: equally many on all of them."""
        return -(-(len(self.mine) - self._recorded) // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        """What is left of the epoch."""
        return self._samples.batches(self.mine[self._recorded :], self.batch_size, self.epoch)

    def record(self, samples: int | None = None) -> None:
        """One more batch of the epoch is done, after the step and before the commit; or so many samples."""
        super().record(self.batch_size if samples is None else samples)
