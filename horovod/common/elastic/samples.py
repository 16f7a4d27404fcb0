"""Where an ``ElasticDataset`` takes its samples from: arrays, or a ``tf.data.Dataset``, for which TensorFlow is not
imported: who gives one has done that.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np


class Samples(Protocol):
    """``length`` of them, told apart by their places, 0 to ``length - 1``."""

    length: int
    shuffles: bool
    """Each epoch's order is its own, and places are those of this order. Else the places are shuffled."""

    def batches(self, places: Sequence[int], batch_size: int, epoch: int) -> Iterator[Any]:
        """Those at ``places``, so many at a time, the last ones perhaps fewer."""
        ...


def samples_of(source: Any, shuffle: int, seed: int, prepare: Callable[[Any], Any] | None) -> Samples:
    """See ``ElasticDataset``. Raises what that raises."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(source, tensorflow.data.Dataset):
        return DatasetSamples(tensorflow, source, shuffle, seed, prepare)
    if prepare is not None:
        raise ValueError(f"prepare is given for a {type(source).__name__}, accepted is one for a tf.data.Dataset")
    return Arrays(source)


class Arrays:
    """Arrays whose first dimensions are equal; or an integer, for indices below it."""

    shuffles = False

    def __init__(self, source: Any) -> None:
        self._source = np.arange(source) if isinstance(source, int) else source
        lengths = sorted(set(_lengths(self._source)))
        if len(lengths) != 1:
            raise ValueError(f"source has arrays of {lengths} samples, accepted are equal numbers")
        self.length = lengths[0]

    def batches(self, places: Sequence[int], batch_size: int, epoch: int) -> Iterator[Any]:
        for begin in range(0, len(places), batch_size):
            yield _taken(self._source, places[begin : begin + batch_size])


class DatasetSamples:
    """A ``tf.data.Dataset``, which can be read from its beginning only: all ranks read all of it, in the same order,
    and each leaves out what is not its own."""

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
            raise ValueError(
                "source is a tf.data.Dataset without an end, accepted is one of an epoch, without repeat()"
            )
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
        """Equal on all ranks, each time."""
        if self._buffer < 2:
            return self._source
        seed = ((self._seed << 32) + epoch) % (1 << 63)

        def shuffled(_: Any) -> Any:
            # Orders follow from TensorFlow's seed besides (tf.random.set_seed), which may be another one on each rank;
            # in a function it is the function's.
            self._tf.compat.v1.set_random_seed(0)
            return self._source.shuffle(self._buffer, seed=seed, reshuffle_each_iteration=False)

        return self._tf.data.Dataset.from_tensors(0).flat_map(self._plain(shuffled))

    def _chosen(self, places: "np.ndarray[Any, Any]", ordered: Any) -> Any:
        """``places`` rise, but for those at the end that are visited a second time."""
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
        """Not to be rewritten by AutoGraph, which warns where it cannot."""
        return self._tf.autograph.experimental.do_not_convert(function)


def _lengths(source: Any) -> Iterator[int]:
    if isinstance(source, Mapping):
        source = list(source.values())
    if isinstance(source, (tuple, list)):
        for one in source:
            yield from _lengths(one)
    else:
        yield len(source)


def _taken(source: Any, places: Sequence[int]) -> Any:
    if isinstance(source, Mapping):
        return {name: _taken(one, places) for name, one in source.items()}
    if isinstance(source, (tuple, list)):
        parts = [_taken(one, places) for one in source]
        return type(source)(*parts) if hasattr(source, "_fields") else type(source)(parts)  # a namedtuple's
    return np.asarray(source)[places]
