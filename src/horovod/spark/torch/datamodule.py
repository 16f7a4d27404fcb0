"""DataModules for PyTorch. Their batches are dicts that map column names to tensors."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from horovod.spark.common.datamodule import NeedsNVTabular, ParquetDataModule


class MapIterable:
    """Iterable that applies ``map_fn`` to each item of ``data``, for ``epochs`` passes or endlessly if it is None."""

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
    """Built-in Parquet reader. It has the same name as in the original Horovod, but does not need petastorm."""

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
        """Return an endless iterator of training batches, which map column names to tensors."""
        return iter(MapIterable(self.train_batches(), 1, tensors))

    def val_data(self) -> Iterator[Any]:
        """Return an endless iterator of validation batches, which map column names to tensors."""
        return iter(MapIterable(self.val_batches(), 1, tensors))


class NVTabularDataModule(NeedsNVTabular, PetastormDataModule):
    """Unsupported reader, whose constructor raises ImportError with the requirements of NVTabular."""


def tensors(batch: dict[str, Any]) -> dict[str, Any]:
    """Convert the numeric columns of a batch to tensors. Other columns remain unchanged."""
    import torch

    return {name: torch.from_numpy(values) if values.dtype.kind in "biuf" else values for name, values in batch.items()}
