"""DataModules for PyTorch, whose batches are dicts of tensors by column."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from horovod.spark.common.datamodule import NeedsNVTabular, ParquetDataModule


class MapIterable:
    """Iterable of ``map_fn(item)`` for each item of ``data``, repeated ``epochs`` times; None means endlessly."""

    def __init__(
        self, data: Iterable[Any], epochs: int | None = None, map_fn: Callable[[Any], Any] = lambda x: x
    ) -> None:
        self.data, self.epochs, self.map_fn = data, epochs, map_fn

    def __iter__(self) -> Iterator[Any]:
        number = 0
        while self.epochs is None or number < self.epochs:
            for item in self.data:
                yield self.map_fn(item)
            number += 1


class PetastormDataModule(ParquetDataModule):
    """Built-in reader of Parquet files. It has the original Horovod's name, but does not need petastorm."""

    short_name = "petastorm"

    def __init__(
        self,
        reader_pool_type: str = "thread",
        train_reader_worker_count: int = 10,
        val_reader_worker_count: int = 10,
        random_seed: int | None = 0,
        **kwargs: Any,
    ) -> None:
        """Create a reader with the same arguments as ParquetDataModule."""
        super().__init__(reader_pool_type, train_reader_worker_count, val_reader_worker_count, random_seed, **kwargs)

    def train_data(self) -> Iterator[Any]:
        """Return an endless iterator of dicts of tensors by column."""
        return iter(MapIterable(self.train_batches(), 1, tensors))

    def val_data(self) -> Iterator[Any]:
        """Return an endless iterator of dicts of tensors by column."""
        return iter(MapIterable(self.val_batches(), 1, tensors))


class NVTabularDataModule(NeedsNVTabular, PetastormDataModule):
    """Unsupported reader: raises ImportError with a message about what NVTabular requires."""


def tensors(batch: dict[str, Any]) -> dict[str, Any]:
    """Convert numeric columns to tensors; leave other columns unchanged."""
    import torch

    return {name: torch.from_numpy(values) if values.dtype.kind in "biuf" else values for name, values in batch.items()}
