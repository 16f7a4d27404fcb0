"""Batches for each rank of an elastic job, from arrays or a ``tf.data.Dataset``.

The module does not import TensorFlow, because a caller that passes a ``tf.data.Dataset`` has already imported it.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from horovod.common.elastic.order import Shares, Walk, batch


class Samples(Protocol):
    """Source of ``length`` samples, identified by positions 0 to ``length - 1``."""

    length: int
    shuffles: bool
    """True if each epoch has its own order and positions refer to that order.

    Otherwise the caller shuffles positions.
    """

    def batches(self, places: Sequence[int], batch_size: int, epoch: int) -> Iterator[Any]:
        """Iterate over batches of the samples at the positions ``places``. The last batch can be smaller."""
        ...


def samples_of(source: Any, shuffle: int, seed: int, prepare: Callable[[Any], Any] | None) -> Samples:
    """Create the source of samples for an ``ElasticDataset``, which documents the arguments."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(source, tensorflow.data.Dataset):
        return DatasetSamples(tensorflow, source, shuffle, seed, prepare)
    if prepare is not None:
        raise ValueError(
            f"prepare must be None unless source is a tf.data.Dataset, got a {type(source).__name__} as source"
        )
    return Arrays(source)


class Arrays:
    """Samples from arrays with equal first dimensions. For an integer n, the samples are the indices 0 to n - 1."""

    shuffles = False

    def __init__(self, source: Any) -> None:
        self._source = np.arange(source) if isinstance(source, int) else source
        lengths = sorted(set(_lengths(self._source)))
        if len(lengths) != 1:
            raise ValueError(f"source must have arrays with equal numbers of samples, got {lengths}")
        self.length = lengths[0]

    def batches(self, places: Sequence[int], batch_size: int, epoch: int) -> Iterator[Any]:
        for begin in range(0, len(places), batch_size):
            yield _select(self._source, places[begin : begin + batch_size])


class DatasetSamples:
    """Samples from a ``tf.data.Dataset``.

    A ``tf.data.Dataset`` can only be read from its beginning. So every rank reads all samples in the same order and
    skips those of other ranks.
    """

    def __init__(
        self, tensorflow: Any, source: Any, shuffle: int, seed: int, prepare: Callable[[Any], Any] | None
    ) -> None:
        self._tf = tensorflow
        self._source = source
        self._prepare = prepare
        self._seed = seed
        self.length = self._count()
        self._buffer = self.length if shuffle is True else int(shuffle)
        self.shuffles = True

    def _count(self) -> int:
        known = int(self._source.cardinality())
        if known == self._tf.data.INFINITE_CARDINALITY:
            raise ValueError("source must be a tf.data.Dataset of one epoch, got one without an end; remove repeat()")
        if known == self._tf.data.UNKNOWN_CARDINALITY:
            known = int(self._source.reduce(np.int64(0), lambda count, _: count + 1))
        return known

    def batches(self, places: Sequence[int], batch_size: int, epoch: int) -> Iterator[Any]:
        if not places:
            return
        chosen = self._chosen(np.asarray(places), self._in_order(epoch))
        if self._prepare is not None:
            chosen = self._prepare(chosen)
        yield from chosen.batch(batch_size).prefetch(1)

    def _in_order(self, epoch: int) -> Any:
        """Return the dataset, shuffled for the epoch. The order is the same on all ranks and in each iteration."""
        if self._buffer < 2:
            return self._source
        seed = ((self._seed << 32) + epoch) % (1 << 63)

        def shuffled(_: Any) -> Any:
            # Ranks can have different global seeds (tf.random.set_seed), which would change the order. A traced
            # function has a separate global seed.
            self._tf.compat.v1.set_random_seed(0)
            return self._source.shuffle(self._buffer, seed=seed, reshuffle_each_iteration=False)

        return self._tf.data.Dataset.from_tensors(0).flat_map(self._plain(shuffled))

    def _chosen(self, places: "np.ndarray[Any, Any]", ordered: Any) -> Any:
        """Return a dataset of the samples at ``places``: ascending positions, possibly followed by repeated ones."""
        falls = np.flatnonzero(np.diff(places) <= 0)
        rising = places[: falls[0] + 1] if len(falls) else places
        begin = int(rising[0])
        here = np.zeros(int(rising[-1]) + 1 - begin, bool)
        here[rising - begin] = True
        chosen = ordered.skip(begin).take(len(here))
        if not here.all():
            datasets = self._tf.data.Dataset
            marked = datasets.zip((chosen, datasets.from_tensor_slices(here)))
            chosen = marked.filter(self._plain(lambda _, mine: mine))
            chosen = chosen.map(self._plain(lambda sample, _: sample))
        for place in places[len(rising) :].tolist():
            chosen = chosen.concatenate(ordered.skip(place).take(1))
        return chosen

    def _plain(self, function: Callable[..., Any]) -> Any:
        """Exclude the function from AutoGraph, which would warn that it cannot convert it."""
        return self._tf.autograph.experimental.do_not_convert(function)


def _lengths(source: Any) -> Iterator[int]:
    if isinstance(source, Mapping):
        source = list(source.values())
    if isinstance(source, (tuple, list)):
        for one in source:
            yield from _lengths(one)
    else:
        yield len(source)


def _select(source: Any, places: Sequence[int]) -> Any:
    if isinstance(source, Mapping):
        return {name: _select(one, places) for name, one in source.items()}
    if isinstance(source, (tuple, list)):
        parts = [_select(one, places) for one in source]
        # Constructors of namedtuples take one argument per field. Those of lists and other tuples take an iterable.
        return type(source)(*parts) if hasattr(source, "_fields") else type(source)(parts)
    return np.asarray(source)[places]


class ElasticDataset(Walk):
    """This rank's batches of an epoch, for elastic training.

    Pass the dataset to a state as an attribute::

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

    Each sample is visited once per epoch, even if the members of the job change. All ranks make the same number of
    steps. To make the numbers equal, a few samples (fewer than there are ranks) are visited twice at the end of an
    epoch.
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

        Each rank reads a ``tf.data.Dataset`` completely and drops the samples of other ranks. Pass expensive
        transformations as ``prepare``, which gets only the samples of this rank.

        Args:
            source: Arrays with equal first dimensions, arbitrarily nested in tuples, lists or dicts. An integer n
                yields batches of indices below n. A ``tf.data.Dataset`` of single samples (not batches) yields batches
                of TensorFlow tensors. It must be finite and have the same order each time. If its length is unknown,
                the samples are counted once.
            batch_size: Samples per rank and step. The last batch of an epoch can have fewer.
            shuffle: True for a different order in each epoch, derived from ``seed`` and the same on all ranks. For a
                ``tf.data.Dataset``, a number sets the size of the shuffle buffer (True: all samples).
            seed: Seed for shuffling.
            global_batch: Samples of all ranks per step, as an alternative to ``batch_size``. Training then does not
                depend on the number of ranks (``hvd.elastic.batch``). The attribute ``batch_size`` is then this rank's
                current share.
            prepare: Function for a ``tf.data.Dataset``. It gets the dataset of this rank's samples and returns a
                transformed dataset of the same length.

        Raises:
            ValueError: If array lengths differ, if a ``tf.data.Dataset`` is infinite, if ``batch_size`` is below 1, or
                if ``global_batch`` has fewer samples than there are ranks (checked now and after changes of the ranks).
        """
        count = batch_size if global_batch is None else global_batch
        if (batch_size is None) == (global_batch is None) or isinstance(count, bool) or not isinstance(count, int):
            raise ValueError(
                f"one of batch_size and global_batch must be an integer, got {batch_size!r} and {global_batch!r}"
            )
        if count < 1:
            name = "batch_size" if global_batch is None else "global_batch"
            raise ValueError(f"{name} must be an integer of at least 1, got {count}")
        self.batch_size = count
        self._global_batch = global_batch
        self._samples = samples_of(source, shuffle, seed, prepare)
        rank, size = self._place_of
        super().__init__(self._samples.length, rank, size, bool(shuffle) and not self._samples.shuffles, seed)

    def on_batch_end(self, batches: int = 1) -> None:
        """Record that this rank has completed ``batches`` batches. After the last batch, the next epoch begins."""
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
        """Return the number of batches that remain in the epoch, which is the same on all ranks."""
        return -(-(len(self.own) - self._recorded) // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over this rank's remaining batches of the epoch."""
        return self._samples.batches(self.own[self._recorded :], self.batch_size, self.epoch)

    def record(self, samples: int | None = None) -> None:
        """Record that this rank has completed ``samples`` samples. Default: one batch.

        Call this after the step and before the commit.
        """
        super().record(self.batch_size if samples is None else samples)
