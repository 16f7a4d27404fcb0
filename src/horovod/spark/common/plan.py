"""Plan, which an estimator sends to its ranks, and Outcome, which rank 0 returns. Framework-independent."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from horovod.spark.common.file_store import RemoteStore
from horovod.spark.common.reader import Table


@dataclass(frozen=True)
class Plan:
    """Picklable description of a training run. Batch sizes are rows of one rank in one step."""

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
        """Return the rank's DataModule, a context manager."""
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
class Outcome:
    """Result of a training run, from rank 0."""

    history: dict[str, list[float]]
    model: bytes
    outputs: list[tuple[tuple[int, ...], str]] = field(default_factory=list)
    """Shape of one row's value, and dtype, of each output."""


def pick(batch: dict[str, Any], names: Sequence[str], what: str) -> list[Any]:
    """Return columns of a batch; raise ValueError if transformation_fn's result lacks one."""
    for name in names:
        if name not in batch:
            raise ValueError(f"{what} names {name!r}, what transformation_fn returns has {', '.join(map(repr, batch))}")
    return [batch[name] for name in names]


def reshaped(values: Any, shape: Sequence[int] | None) -> Any:
    """Return rows reshaped to `shape`, in which a -1 at the front may stand for the number of rows."""
    from horovod.spark.common.columns import row_shape

    if shape is None:
        return values
    size = 1
    for one in values.shape[1:]:
        size *= one
    return values.reshape(len(values), *row_shape(shape, size))
