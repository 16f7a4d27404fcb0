"""DataModules for Keras. Their batches are dicts that map column names to NumPy arrays."""

from collections.abc import Callable, Iterator
from typing import Any

from horovod.spark.common.datamodule import NeedsNVTabular, ParquetDataModule


class PetastormDataModule(ParquetDataModule):
    """Built-in Parquet reader. It keeps the name used in the original Horovod, but does not need petastorm."""

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
        """Create a reader of Parquet files.

        Args:
            reader_pool_type: See ParquetDataModule.
            train_reader_worker_count: See ParquetDataModule.
            val_reader_worker_count: See ParquetDataModule.
            make_dataset: Function that converts an endless iterator of dicts of NumPy arrays to a data set. Default:
                the iterator itself is used.
            random_seed: See ParquetDataModule.
            tensorflow_dataset_prefetch_buffer_size: Number of batches to prefetch. With 0, the two worker counts are
                used.
            **kwargs: Additional arguments of ParquetDataModule.
        """
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
        """Return the result of ``make_dataset`` if it was given, or else an endless iterator of dicts of arrays."""
        return self._convert(self.train_batches())

    def val_data(self) -> Any:
        """Return an endless iterator of dicts of arrays, or the result of ``make_dataset``."""
        return self._convert(self.val_batches())

    def _convert(self, batches: Iterator[Any]) -> Any:
        return batches if self._make_dataset is None else self._make_dataset(batches)


class NVTabularDataModule(NeedsNVTabular, PetastormDataModule):
    """Unsupported reader, whose constructor raises ImportError with the requirements of NVTabular."""
