"""PyTorch data loaders for training loops that read batches of columns.

A *reader* is an iterable of batches, each with any number of rows. A batch is a dict that maps column names to arrays,
or a named tuple as in petastorm. Each iteration over the reader is one pass over the data. If the reader is an
iterator, each pass continues where the previous one stopped. The loaders return batches as dicts that map column names
to tensors. Columns that are not numeric remain arrays.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from horovod.data import AsyncDataLoaderMixin, BaseDataLoader
from horovod.spark.common.checks import Count, refuse
from horovod.spark.torch.datamodule import tensors

_Rows = dict[str, Any]


class PetastormBatchedDataLoader(BaseDataLoader):
    """Base class of the PyTorch data loaders."""

    def __init__(
        self, name: str = "", limit_step_per_epoch: int = -1, verbose: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        """Create a loader with the options that all loaders have.

        Args:
            name: Name of the loader in messages.
            limit_step_per_epoch: Number of batches per epoch. -1 means all.
            verbose: True to print the number of batches at the end of each epoch.
            *args: Arguments for other base classes.
            **kwargs: Keyword arguments for other base classes.

        Raises:
            ValueError: If ``limit_step_per_epoch`` is below 1 and not -1.
        """
        if limit_step_per_epoch != -1:
            Count(1)("limit_step_per_epoch", limit_step_per_epoch)
        self.name, self.limit_step_per_epoch, self.verbose = name, limit_step_per_epoch, verbose
        super().__init__(*args, **kwargs)

    def __len__(self) -> int:
        if self.limit_step_per_epoch == -1:
            return super().__len__()
        return self.limit_step_per_epoch

    def _batches(self) -> Iterator[_Rows]:
        raise NotImplementedError(f"{type(self).__name__} must define _batches")

    def _iterate(self) -> Iterator[_Rows]:
        taken = 0
        if taken != self.limit_step_per_epoch:
            for batch in self._batches():
                yield tensors(batch)
                taken += 1
                if taken == self.limit_step_per_epoch:
                    break
        if self.verbose:
            print(f"{self.name or type(self).__name__}: {taken} batches", flush=True)


class PytorchDataLoader(PetastormBatchedDataLoader):
    """Loader that makes one pass over the reader per epoch."""

    def __init__(
        self,
        reader: Iterable[Any],
        batch_size: int,
        shuffling_queue_capacity: int,
        name: str = "",
        limit_step_per_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        """Create a loader for a reader.

        Args:
            reader: Reader of the data.
            batch_size: Rows per batch. The last batch of a pass can be smaller.
            shuffling_queue_capacity: Size of the buffer from which rows are drawn at random. 0 keeps the order of the
                rows.
            name: See PetastormBatchedDataLoader.
            limit_step_per_epoch: See PetastormBatchedDataLoader.
            verbose: See PetastormBatchedDataLoader.

        Raises:
            ValueError: If a number is invalid.
        """
        super().__init__(name, limit_step_per_epoch, verbose)
        self.reader, self.batch_size = reader, Count(1)("batch_size", batch_size)
        self.shuffling_queue_capacity = Count(0)("shuffling_queue_capacity", shuffling_queue_capacity)

    def _batches(self) -> Iterator[_Rows]:
        return in_batches(self.reader, self.batch_size, self.shuffling_queue_capacity)


class PytorchAsyncDataLoader(AsyncDataLoaderMixin, PytorchDataLoader):
    """PytorchDataLoader with a thread that prefetches batches."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Create a loader with the arguments of AsyncDataLoaderMixin, followed by those of PytorchDataLoader."""
        super().__init__(*args, **kwargs)


class PytorchInfiniteDataLoader(PytorchDataLoader):
    """Loader that iterates over the reader endlessly.

    An epoch has ``limit_step_per_epoch`` batches. The next epoch continues where the previous epoch ended.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Create a loader with the same arguments as PytorchDataLoader.

        Raises:
            ValueError: If ``limit_step_per_epoch`` is not given, or a number is invalid.
        """  # noqa: DOC501
        super().__init__(*args, **kwargs)
        if self.limit_step_per_epoch == -1:
            raise refuse("limit_step_per_epoch", -1, "the number of batches of an epoch for an infinite loader")
        self._stream: Iterator[_Rows] | None = None

    def _batches(self) -> Iterator[_Rows]:
        if self._stream is None:
            self._stream = in_batches(_forever(self.reader), self.batch_size, self.shuffling_queue_capacity)
        return self._stream


class PytorchInfiniteAsyncDataLoader(AsyncDataLoaderMixin, PytorchInfiniteDataLoader):
    """PytorchInfiniteDataLoader with a thread that prefetches batches."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Create a loader with the arguments of AsyncDataLoaderMixin, followed by those of the base loader."""
        super().__init__(*args, **kwargs)


class PytorchInmemDataLoader(PetastormBatchedDataLoader):
    """Loader that reads all rows once and keeps them in memory."""

    def __init__(
        self,
        reader: Iterable[Any],
        batch_size: int,
        num_epochs: int,
        name: str = "",
        shuffle: bool = False,
        limit_step_per_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        """Create a loader and read all rows.

        Args:
            reader: Reader of the data.
            batch_size: Rows per batch. The last batch of an epoch can be smaller.
            num_epochs: Number of times that the loader can be iterated. Further iterations raise RuntimeError.
            name: See PetastormBatchedDataLoader.
            shuffle: True if each epoch has a different order of rows.
            limit_step_per_epoch: See PetastormBatchedDataLoader.
            verbose: See PetastormBatchedDataLoader.

        Raises:
            ValueError: If a number is invalid, or the reader has no rows.
        """
        super().__init__(name, limit_step_per_epoch, verbose)
        self.batch_size, self.num_epochs = Count(1)("batch_size", batch_size), Count(1)("num_epochs", num_epochs)
        self.shuffle, self._epoch = shuffle, 0
        parts = [_as_dict(one) for one in reader]
        if not parts:
            raise ValueError("reader has no rows")
        self._rows = _joined(parts)

    def _batches(self) -> Iterator[_Rows]:
        if self._epoch == self.num_epochs:
            raise RuntimeError(f"all {self.num_epochs} epochs (num_epochs) have been iterated")
        self._epoch += 1
        rows = _length(self._rows)
        order = np.random.default_rng(self._epoch).permutation(rows) if self.shuffle else np.arange(rows)
        for begin in range(0, rows, self.batch_size):
            chosen = order[begin : begin + self.batch_size]
            yield {name: values[chosen] for name, values in self._rows.items()}


class PytorchInmemAsyncDataLoader(AsyncDataLoaderMixin, PytorchInmemDataLoader):
    """PytorchInmemDataLoader with a thread that prepares batches."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Create a loader with the arguments of AsyncDataLoaderMixin, followed by those of the base loader."""
        super().__init__(*args, **kwargs)


def in_batches(reader: Iterable[Any], batch_size: int, capacity: int, seed: int = 0) -> Iterator[_Rows]:
    """Yield the reader's rows in batches of ``batch_size``. The last batch can be smaller.

    Rows are drawn at random from a buffer of ``capacity`` rows. A ``capacity`` of 0 keeps the order of the rows.
    """
    random = np.random.default_rng(seed)
    buffer: list[_Rows] = []
    rows, least = 0, max(capacity, batch_size - 1)
    for one in reader:
        buffer.append(_as_dict(one))
        rows += _length(buffer[-1])
        if rows > least + (batch_size if capacity else 0):
            pool, begin = _pool(buffer, random, capacity), 0
            while rows - begin > least:
                yield _part(pool, begin, begin + batch_size)
                begin += batch_size
            buffer = [_part(pool, begin, rows)]
            rows = _length(buffer[0])
    if rows:
        pool = _pool(buffer, random, capacity)
        for begin in range(0, rows, batch_size):
            yield _part(pool, begin, begin + batch_size)


def _pool(buffer: list[_Rows], random: Any, capacity: int) -> _Rows:
    whole = _joined(buffer)
    if not capacity:
        return whole
    order = random.permutation(_length(whole))
    return {name: values[order] for name, values in whole.items()}


def _part(rows: _Rows, begin: int, end: int) -> _Rows:
    return {name: values[begin:end] for name, values in rows.items()}


def _forever(reader: Iterable[Any]) -> Iterator[Any]:
    while True:
        empty = True
        for one in reader:
            empty = False
            yield one
        if empty:
            raise ValueError(
                "reader must have rows and start over when iterated again, got none; an exhausted iterator does not"
            )


def _as_dict(batch: Any) -> _Rows:
    fields = batch._asdict() if hasattr(batch, "_asdict") else dict(batch)
    return {name: np.asarray(values) for name, values in fields.items()}


def _joined(parts: list[_Rows]) -> _Rows:
    return parts[0] if len(parts) == 1 else {name: np.concatenate([one[name] for one in parts]) for name in parts[0]}


def _length(rows: _Rows) -> int:
    return len(next(iter(rows.values())))
