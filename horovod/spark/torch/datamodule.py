"""DataModules for PyTorch: batches as dicts of tensors by column."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from horovod.spark.common.datamodule import NeedsNVTabular, ParquetDataModule


class MapIterable:
    """``map_fn`` of each item of ``data``, which is gone through ``epochs`` times, or without an end if not given."""

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
    """The built-in reader of Parquet. (The name is that of programs written for Horovod; petastorm is not needed.)"""

    short_name = "petastorm"

    def __init__(
        self,
        reader_pool_type: str = "thread",
        train_reader_worker_count: int = 10,
        val_reader_worker_count: int = 10,
        random_seed: int | None = 0,
        **kwargs: Any,
    ) -> None:
        """See ParquetDataModule."""
        super().__init__(reader_pool_type, train_reader_worker_count, val_reader_worker_count, random_seed, **kwargs)

    def train_data(self) -> Iterator[Any]:
        """Dicts of tensors, without an end."""
        return iter(MapIterable(self.train_batches(), 1, tensors))

    def val_data(self) -> Iterator[Any]:
        return iter(MapIterable(self.val_batches(), 1, tensors))


class NVTabularDataModule(NeedsNVTabular, PetastormDataModule):
    """What programs written for NVTabular name; says what it would need."""


def tensors(batch: dict[str, Any]) -> dict[str, Any]:
    """Columns of numbers as tensors; others as they are."""
    import torch

    return {name: torch.from_numpy(values) if values.dtype.kind in "biuf" else values for name, values in batch.items()}
