"""DataModules: what reads an estimator's data in a rank."""

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

from horovod.data import ReadAhead
from horovod.spark.common.existing import open_existing
from horovod.spark.common.reader import Batch, Batches, Table, transformed
from horovod.spark.common.store import Store

log = logging.getLogger("horovod.data")


class DataModule:
    """A context in which there are ``train_data()`` and ``val_data()``: what the framework's loop takes batches from.
    For readers of your own; an estimator's ``data_module`` is the class, which it calls in each rank with all of the
    arguments below, and with more that it may ignore."""

    short_name = "custom"
    """For messages."""

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
        """``train_dir``, ``val_dir``: folders of Parquet. ``has_val``: is there a ``val_dir``? ``transform_fn``: of a
        pandas.DataFrame, a batch. ``cur_shard``, ``shard_count``: rank and size. ``schema_fields``: columns that are
        read, all if not given. ``storage_options``: what fsspec is told. ``steps_per_epoch_train``, ``_val``: batches
        that are taken in an epoch, of each rank."""
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
        """Called on the driver, before anything runs: raises for what the module lacks."""

    def __enter__(self) -> "DataModule":
        return self

    def __exit__(self, *error: object) -> None:
        """Ends what reads."""

    def train_data(self) -> Any:
        """Batches to train with, without an end: ``steps_per_epoch_train`` are an epoch."""
        raise NotImplementedError(f"{type(self).__name__} has no train_data of its own")

    def val_data(self) -> Any:
        """Batches to validate with, without an end: ``steps_per_epoch_val`` are one validation."""
        raise NotImplementedError(f"{type(self).__name__} has no val_data of its own")


class ParquetDataModule(DataModule):
    """The built-in reader, as dicts of NumPy arrays by column; the next batches, of the next epoch too, are read ahead
    in a thread. Frameworks make theirs of it."""

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
        """``train_reader_worker_count``, ``val_reader_worker_count``: batches that are read ahead, in a
        thread; none with ``reader_pool_type`` "dummy". ``random_seed``: of the order. ``train_table``, ``val_table``:
        the folders as the driver has opened them. ``debug_data_loader``: the log ``horovod.data`` tells at level info
        how long each batch has been waited for. The rest is DataModule's."""
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
    """What the NVTabular modules of all frameworks do: say what they would need. Stands before their other base."""

    def __init__(
        self, label_cols: Any = (), categorical_cols: Any = (), continuous_cols: Any = (), **kwargs: Any
    ) -> None:
        """Raises ImportError."""
        self.check()

    @classmethod
    def check(cls) -> None:
        raise ImportError(
            f"{cls.__module__}.{cls.__qualname__} reads with NVIDIA's NVTabular, which needs a GPU of NVIDIA, CUDA and "
            "the packages nvtabular and cudf, and is not in this version of Horovod; leave data_module out for the "
            "built-in reader of Parquet, which needs none of them"
        )
