"""DataModules for Lightning. Their batches are dicts that map column names to tensors."""

from collections.abc import Callable, Sequence
from typing import Any

from horovod.spark.torch import datamodule as of_torch

PETASTORM_HDFS_DRIVER = "libhdfs"


class PetastormDataModule(of_torch.PetastormDataModule):
    """Built-in Parquet reader. It has the same name as in the original Horovod, but does not need petastorm."""

    def __init__(  # noqa: D417 - the others are those of ParquetDataModule
        self,
        train_dir: str,
        val_dir: str,
        num_train_epochs: int = 1,
        has_val: bool = True,
        train_batch_size: int = 32,
        val_batch_size: int = 32,
        shuffle: bool = True,
        num_reader_epochs: int | None = None,
        reader_pool_type: str = "thread",
        reader_worker_count: int = 2,
        transformation: Callable[[Any], Any] | None = None,
        transformation_edit_fields: Sequence[Any] | None = None,
        transformation_removed_fields: Sequence[str] | None = None,
        inmemory_cache_all: bool = False,
        cur_shard: int = 0,
        shard_count: int = 1,
        schema_fields: Sequence[str] | None = None,
        storage_options: dict[str, Any] | None = None,
        steps_per_epoch_train: int = 1,
        steps_per_epoch_val: int = 1,
        verbose: Any = True,
        debug_data_loader: bool = False,
        train_async_data_loader_queue_size: int | None = None,
        val_async_data_loader_queue_size: int | None = None,
        seed: int | None = None,
        transform_fn: Callable[[Any], Any] | None = None,
        random_seed: int | None = 0,
        train_reader_worker_count: int | None = None,
        val_reader_worker_count: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Create a reader of Parquet files. ParquetDataModule describes the arguments that are not listed here.

        Args:
            num_reader_epochs: Ignored.
            reader_worker_count: Number of batches to prefetch, unless one of the following four arguments is given.
            train_async_data_loader_queue_size: Number of training batches to prefetch.
            val_async_data_loader_queue_size: Number of validation batches to prefetch.
            train_reader_worker_count: Number of training batches to prefetch, if no queue size is given.
            val_reader_worker_count: Number of validation batches to prefetch, if no queue size is given.
            transformation: Alias of ``transform_fn``.
            seed: Alias of ``random_seed``.
        """
        ahead = [
            queue if queue is not None else count if count is not None else reader_worker_count
            for queue, count in (
                (train_async_data_loader_queue_size, train_reader_worker_count),
                (val_async_data_loader_queue_size, val_reader_worker_count),
            )
        ]
        super().__init__(
            reader_pool_type,
            ahead[0],
            ahead[1],
            random_seed if seed is None else seed,
            train_dir=train_dir,
            val_dir=val_dir,
            num_train_epochs=num_train_epochs,
            has_val=has_val,
            train_batch_size=train_batch_size,
            val_batch_size=val_batch_size,
            shuffle=shuffle,
            transform_fn=transformation if transform_fn is None else transform_fn,
            transformation_edit_fields=transformation_edit_fields,
            transformation_removed_fields=transformation_removed_fields,
            inmemory_cache_all=inmemory_cache_all,
            cur_shard=cur_shard,
            shard_count=shard_count,
            schema_fields=schema_fields,
            storage_options=storage_options,
            steps_per_epoch_train=steps_per_epoch_train,
            steps_per_epoch_val=steps_per_epoch_val,
            verbose=verbose,
            debug_data_loader=debug_data_loader,
            **kwargs,
        )
