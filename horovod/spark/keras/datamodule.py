"""DataModules for Keras: batches as ``fit`` takes them from a generator."""

from collections.abc import Callable, Iterator
from typing import Any

from horovod.spark.common.datamodule import NeedsNVTabular, ParquetDataModule


class PetastormDataModule(ParquetDataModule):
    """The built-in reader of Parquet. (The name is that of programs written for Horovod; petastorm is not needed.)"""

    short_name = "petastorm"

    def __init__(
        self,
        reader_pool_type: str = "thread",
        train_reader_worker_count: int = 2,
        val_reader_worker_count: int = 2,
        make_dataset: Callable[[Iterator[Any]], Any] | None = None,
        random_seed: int | None = 0,
        tensorflow_dataset_prefetch_buffer_size: int = 0,
        **kwargs: Any,
    ) -> None:
        """``make_dataset``: from an iterator of dicts of NumPy arrays, without an end, to what ``train_data`` and
        ``val_data`` return. ``tensorflow_dataset_prefetch_buffer_size``: batches that are read ahead, in place of the
        counts of workers, unless 0. The rest is ParquetDataModule's."""
        ahead = tensorflow_dataset_prefetch_buffer_size
        super().__init__(
            reader_pool_type,
            ahead or train_reader_worker_count,
            ahead or val_reader_worker_count,
            random_seed,
            **kwargs,
        )
        self._make_dataset = make_dataset

    def train_data(self) -> Any:
        """Dicts of arrays, without an end."""
        return self._made(self.train_batches())

    def val_data(self) -> Any:
        return self._made(self.val_batches())

    def _made(self, batches: Iterator[Any]) -> Any:
        return batches if self._make_dataset is None else self._make_dataset(batches)


class NVTabularDataModule(NeedsNVTabular, PetastormDataModule):
    """What programs written for NVTabular name; says what it would need."""
