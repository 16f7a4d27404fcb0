"""The training plan that the driver sends to the ranks, the training's result, and functions that prepare a rank."""

import multiprocessing
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from horovod.spark.common.file_store import RemoteStore
from horovod.spark.common.reader import Table
from horovod.spark.task import get_available_devices


@dataclass(frozen=True)
class TrainingPlan:
    """Plan of a training run, sent from the driver to the ranks. Batch sizes are in rows per rank and step."""

    remote: RemoteStore
    train: Table
    val: Table | None
    features: tuple[str, ...]
    labels: tuple[str, ...]
    weight: str | None
    label_shapes: tuple[tuple[int, ...], ...] | None
    batch_size: int
    val_batch_size: int
    epochs: int
    steps: int
    val_steps: int
    shuffle: bool
    seed: int | None
    verbose: int
    data_module: type
    module_arguments: dict[str, Any]
    use_gpu: bool
    mp_start_method: str | None
    backward_passes_per_step: int
    payload: bytes
    """Values of the framework's params, pickled together."""
    checkpoint: bytes | None = None
    """Checkpoint to continue from, if the run is resumed."""

    def open_data(self, rank: int, ranks: int) -> Any:
        """Create the DataModule of this rank, which is a context manager."""
        schema = self.train.columns
        return self.data_module(
            train_dir=self.remote.train_data_path,
            val_dir=self.remote.val_data_path,
            num_train_epochs=self.epochs,
            has_val=self.val is not None,
            train_batch_size=self.batch_size,
            val_batch_size=self.val_batch_size,
            shuffle=self.shuffle,
            cur_shard=rank,
            shard_count=ranks,
            schema_fields=[column.name for column in schema],
            storage_options=self.remote.store.storage_options,
            steps_per_epoch_train=self.steps,
            steps_per_epoch_val=self.val_steps,
            verbose=self.verbose,
            random_seed=self.seed or 0,
            train_table=self.train,
            val_table=self.val,
            **self.module_arguments,
        )


@dataclass
class TrainingResult:
    """Result of a training run, which rank 0 returns to the driver."""

    history: dict[str, list[float]]
    model: bytes
    outputs: list[tuple[tuple[int, ...], str]] = field(default_factory=list)
    """Shape of one row's value, and dtype, of each output."""


def pick(batch: dict[str, Any], names: Sequence[str], what: str) -> list[Any]:
    """Return the columns ``names`` of a batch. Raises ValueError if the transformation_fn has removed one of them."""
    for name in names:
        if name not in batch:
            raise ValueError(
                f"{what} must name columns that transformation_fn returns, {', '.join(map(repr, batch))}, got {name!r}"
            )
    return [batch[name] for name in names]


def reshaped(values: Any, shape: Sequence[int] | None) -> Any:
    """Reshape the value in each row to `shape`. A leading -1 can stand for the number of rows."""
    from horovod.spark.common.columns import row_shape

    if shape is None:
        return values
    size = 1
    for one in values.shape[1:]:
        size *= one
    return values.reshape(len(values), *row_shape(shape, size))


# -- preparation of ranks --------------------------------------------------------------------------------------------


def prepare_rank(plan: TrainingPlan, rank: int) -> None:
    """Seed Python's and NumPy's random generators differently on each rank, and set multiprocessing's start method.

    Each of these settings is only changed if the plan contains a value for it.
    """
    if plan.mp_start_method is not None:
        multiprocessing.set_start_method(plan.mp_start_method, force=True)
    if plan.seed is not None:
        import numpy as np

        random.seed(plan.seed + rank)
        np.random.seed((plan.seed + rank) % (1 << 32))


def own_gpu(count: int, local_rank: int) -> int:
    """Return the index of this rank's GPU among the ``count`` visible GPUs.

    This is the first GPU that Spark assigned to the task. If Spark assigned no GPU, the local rank selects one.
    """
    return gpu_number(get_available_devices(), os.environ.get("CUDA_VISIBLE_DEVICES"), count, local_rank)


def gpu_number(assigned: Sequence[str], visible: str | None, count: int, local_rank: int) -> int:
    """Return the index of a rank's GPU among the visible GPUs. The result depends only on the arguments.

    Args:
        assigned: Addresses of the GPUs that Spark assigned to the task.
        visible: Value of CUDA_VISIBLE_DEVICES, or None if all GPUs of the host are visible.
        count: Number of visible GPUs.
        local_rank: Number of the rank on its host.

    Raises:
        ValueError: If the assigned GPU is not visible.
    """
    if not assigned:
        return local_rank % count
    address, seen = assigned[0], [name.strip() for name in visible.split(",")] if visible is not None else []
    if address in seen[:count]:
        return seen.index(address)
    # In a container, GPUs can be numbered from 0, independently of their numbers on the host.
    if address.isdecimal() and int(address) < count:
        return int(address)
    raise ValueError(
        f"Spark has given GPU {address!r} to this task, which sees {count} GPUs (CUDA_VISIBLE_DEVICES is {visible!r})"
    )
