"""DataModules, which provide each rank with an estimator's data."""

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

from horovod.data import ReadAhead
from horovod.spark.common.reader import Batch, Batches, Table, open_existing, transformed
from horovod.spark.common.store import Store

log = logging.getLogger("horovod.data")


class DataModule:
    """Context manager that provides the batches for training and validation on one rank.

    Users can define a subclass for a custom reader, and pass it as an estimator's ``data_module``. Each rank calls the
    class with all arguments below, and with additional ones that the class can ignore.
    """

    short_name = "custom"
    """Name for messages."""

    def __init__(
        self,
        train_dir: str,
        val_dir: str,
        num_train_epochs: int = 1,
        has_val: bool = True,
        train_batch_size: int = 32,
        val_batch_size: int = 32,
        shuffle: bool = True,
        transform_fn: Any = None,
        inmemory_cache_all: bool = False,
        cur_shard: int = 0,
        shard_count: int = 1,
        schema_fields: Sequence[str] | None = None,
        storage_options: dict[str, Any] | None = None,
        steps_per_epoch_train: int = 1,
        steps_per_epoch_val: int = 1,
        verbose: Any = True,
        **kwargs: Any,
    ) -> None:
        """Store the arguments as attributes.

        Args:
            train_dir: Folder of the Parquet files to train with.
            val_dir: Folder of the Parquet files to validate with.
            num_train_epochs: Number of epochs.
            has_val: True if there is a ``val_dir``.
            train_batch_size: Rows per rank in each training step.
            val_batch_size: Rows per rank in each validation step.
            shuffle: True if each epoch has a different order of rows.
            transform_fn: Function that takes a batch as a pandas.DataFrame and returns a new one.
            inmemory_cache_all: True to keep the rank's rows in memory after reading them once.
            cur_shard: Rank.
            shard_count: Number of ranks.
            schema_fields: Columns to read. Default: all.
            storage_options: Options for fsspec.
            steps_per_epoch_train: Batches that each rank takes in an epoch.
            steps_per_epoch_val: Batches that each rank takes in a validation.
            verbose: The estimator's ``verbose``.
            **kwargs: Additional arguments, kept in ``self.kwargs``.
        """
        self.train_dir, self.val_dir, self.has_val = train_dir, val_dir, has_val
        self.num_train_epochs = num_train_epochs
        self.train_batch_size, self.val_batch_size = train_batch_size, val_batch_size
        self.shuffle, self.transform_fn, self.inmemory_cache_all = shuffle, transform_fn, inmemory_cache_all
        self.cur_shard, self.shard_count = cur_shard, shard_count
        self.schema_fields, self.storage_options = schema_fields, storage_options
        self.steps_per_epoch_train, self.steps_per_epoch_val = steps_per_epoch_train, steps_per_epoch_val
        self.verbose, self.kwargs = verbose, kwargs

    @classmethod
    def check(cls) -> None:
        """Raise an exception if packages that this class needs are missing. The driver calls this before training."""

    def __enter__(self) -> "DataModule":
        return self

    def __exit__(self, *error: object) -> None:
        """Stop the threads that prefetch batches. Do nothing if there are none."""

    def train_data(self) -> Any:
        """Return an endless iterable of training batches. An epoch consumes ``steps_per_epoch_train`` of them."""
        raise NotImplementedError(f"{type(self).__name__} must define train_data")

    def val_data(self) -> Any:
        """Return an endless iterable of validation batches.

        Each validation run consumes ``steps_per_epoch_val`` batches.
        """
        raise NotImplementedError(f"{type(self).__name__} must define val_data")


class ParquetDataModule(DataModule):
    """Built-in reader of Parquet files, and base class of the DataModule of each framework.

    Its batches are dicts that map column names to NumPy arrays. A thread prefetches batches, even beyond the end of an
    epoch.
    """

    short_name = "parquet"

    def __init__(
        self,
        reader_pool_type: str = "thread",
        train_reader_worker_count: int = 2,
        val_reader_worker_count: int = 2,
        random_seed: int | None = 0,
        train_table: Table | None = None,
        val_table: Table | None = None,
        transformation_edit_fields: Sequence[Any] | None = None,
        transformation_removed_fields: Sequence[str] | None = None,
        debug_data_loader: bool = False,
        **kwargs: Any,
    ) -> None:
        """Create a reader of Parquet files.

        Args:
            reader_pool_type: "dummy" disables prefetching. With all other values, a thread prefetches batches.
            train_reader_worker_count: Number of training batches to prefetch.
            val_reader_worker_count: Number of validation batches to prefetch.
            random_seed: Seed for the order of rows.
            train_table: Data set in ``train_dir``, if the driver has already opened it.
            val_table: Data set in ``val_dir``, if the driver has already opened it.
            transformation_edit_fields: Columns that ``transform_fn`` adds, as (name, dtype, shape, nullable).
            transformation_removed_fields: Columns that ``transform_fn`` removes.
            debug_data_loader: True to log the waiting time for each batch (logger ``horovod.data``, level INFO).
            **kwargs: Arguments of DataModule.
        """
        super().__init__(**kwargs)
        self._ahead = reader_pool_type != "dummy"
        self._depths = train_reader_worker_count, val_reader_worker_count
        self._seed = random_seed or 0
        self._tables = train_table, val_table
        self._fields = transformation_edit_fields, transformation_removed_fields
        self._debug = debug_data_loader
        self._open = contextlib.ExitStack()

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def train_batches(self) -> Iterator[Batch]:
        batches = self._batches(self.train_dir, self._tables[0], self.train_batch_size, self.shuffle)
        return self._read_ahead(batches.forever(), self._depths[0])

    def val_batches(self) -> Iterator[Batch]:
        batches = self._batches(self.val_dir, self._tables[1], self.val_batch_size, False)
        return self._read_ahead(batches.first(self.steps_per_epoch_val), self._depths[1])

    def _batches(self, folder: str, table: Table | None, batch_size: int, shuffle: bool) -> Batches:
        if table is None:
            store = Store.create(folder, storage_options=self.storage_options)
            columns = {"schema_fields": list(self.schema_fields)} if self.schema_fields else {}
            table = open_existing(store, folder, columns, self.transform_fn is not None)
        return Batches(
            table, batch_size, shuffle, self._seed, self.cur_shard, self.shard_count, self.inmemory_cache_all
        )

    def _read_ahead(self, batches: Iterator[Batch], depth: int) -> Iterator[Batch]:
        if self.transform_fn is not None:
            batches = (transformed(batch, self.transform_fn, *self._fields) for batch in batches)
        if self._ahead and depth > 0:
            reading = ReadAhead(batches, depth)
            self._open.callback(reading.close)
            batches = reading
        return self._logged(batches) if self._debug else batches

    def _logged(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        begin = time.perf_counter()
        for number, batch in enumerate(batches):
            log.info("%s: waited %.3f s for batch %d", self.short_name, time.perf_counter() - begin, number)
            yield batch
            begin = time.perf_counter()


class NeedsNVTabular:
    """Mixin for NVTabular modules, which are not supported. It must be the first base class.

    The constructor raises an error that names the missing requirements.
    """

    def __init__(
        self, label_cols: Any = (), categorical_cols: Any = (), continuous_cols: Any = (), **kwargs: Any
    ) -> None:
        """Raise an ImportError that explains what NVTabular requires."""
        self.check()

    @classmethod
    def check(cls) -> None:
        raise ImportError(
            f"{cls.__module__}.{cls.__qualname__} reads with NVIDIA's NVTabular, which needs a GPU of NVIDIA, CUDA and "
            "the packages nvtabular and cudf, and is not in this version of Horovod; leave data_module out for the "
            "built-in reader of Parquet, which needs none of them"
        )
