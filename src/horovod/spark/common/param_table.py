"""Table of the params that estimators and models of all frameworks have. Pure, and without pyspark.

``params`` creates Spark ML's params from it. Frameworks have additional rows.
"""

from dataclasses import dataclass
from typing import Any

from horovod.spark.common import checks
from horovod.spark.common.checks import Check, Count, OneOf

SEED = Count(0, (1 << 63) - 1)
"""Validator of seeds, which must fit into Spark's signed 64-bit integers."""


@dataclass(frozen=True)
class Row:
    """Description of one param.

    Attributes:
        name: Name of the argument. The methods are ``get`` and ``set`` with this name in CamelCase.
        doc: Description, the end of a sentence.
        default: Default value, or None.
        check: Validator of values.
        shown: Default value that the constructor's signature shows.
    """

    name: str
    doc: str
    default: Any = None
    check: Check = checks.anything
    shown: Any = None

    @property
    def camel(self) -> str:
        return "".join(part.capitalize() for part in self.name.split("_"))


ESTIMATOR = (
    Row("num_proc", "ranks that train; spark.default.parallelism if not given", None, Count(1)),
    Row("store", "a Store: where data, checkpoints and logs lie"),
    Row("backend", "a Backend: how ranks are started; SparkBackend if not given"),
    Row("model", "the model to train"),
    Row("optimizer", "the optimizer, not distributed"),
    Row("loss", "the loss, or a list of one for each label"),
    Row("loss_weights", "factors of the losses, one for each label", None, checks.weights),
    Row("metrics", "metrics of each epoch", [], checks.listed),
    Row("callbacks", "callbacks of the framework, on every rank", [], checks.listed),
    Row("sample_weight_col", "column of each row's weight in the loss", None, checks.text),
    Row("feature_cols", "columns that the model takes, in its order", None, checks.names),
    Row("label_cols", "columns that the model is to learn, in the order of its outputs", None, checks.names),
    Row("continuous_cols", "accepted for old programs, without effect: was for NVTabular", None, checks.names),
    Row("categorical_cols", "accepted for old programs, without effect: was for NVTabular", None, checks.names),
    Row("validation", "the fraction of rows, or the column of a boolean, to validate with", None, checks.validation),
    Row("gradient_compression", "a class of the face's Compression", None),
    Row("compress_sparse_cols", "store sparse vectors as indices and values", False, checks.flag),
    Row("batch_size", "rows of a rank and step", 32, Count(1)),
    Row("val_batch_size", "rows of a rank and step of validation; batch_size if not given", None, Count(1)),
    Row("epochs", "passes over the rows", 1, Count(1)),
    Row("verbose", "0: silent, 1: rank 0 shows its progress, 2: a line an epoch", 1, Count(0), shown=1),
    Row("random_seed", "of the order of rows, the split and the framework", None, SEED),
    Row("shuffle_buffer_size", "deprecated, without effect: rows are mixed over whole files", None, Count(0)),
    Row("shuffle", "rows in another order in each epoch", True, checks.flag, shown=True),
    Row("partitions_per_process", "files of Parquet for each rank", 10, Count(1)),
    Row("run_id", "name of the run in the store; a new one if not given", None, checks.text),
    Row("train_steps_per_epoch", "steps of an epoch; all rows once if not given", None, Count(1)),
    Row("validation_steps_per_epoch", "steps of a validation; all rows once if not given", None, Count(1)),
    Row("transformation_fn", "function of a pandas.DataFrame, a batch, to another one", None, checks.function),
    Row(
        "transformation_edit_fields",
        "what transformation_fn adds: (name, dtype, shape, nullable) each",
        None,
        checks.listed,
    ),
    Row("transformation_removed_fields", "columns that transformation_fn removes", None, checks.names),
    Row("train_reader_num_workers", "batches that are read ahead", 2, Count(1)),
    Row("val_reader_num_workers", "batches of validation that are read ahead", 2, Count(1)),
    Row(
        "reader_pool_type",
        "thread, and process, which means the same: batches are read ahead in a thread; dummy: they are not read ahead",
        "thread",
        OneOf("thread", "process", "dummy"),
        shown="thread",
    ),
    Row("label_shapes", "shape of each label, without the rows, such as [[10]]", None, checks.shapes),
    Row("inmemory_cache_all", "read a rank's part once and keep it in memory", False, checks.flag, shown=False),
    Row("use_gpu", "train on GPUs where there are some", True, checks.flag, shown=True),
    Row(
        "mp_start_method",
        "of processes that ranks start: fork, spawn or forkserver",
        None,
        OneOf("fork", "spawn", "forkserver"),
    ),
    Row("backward_passes_per_step", "batches whose gradients are summed up before a step", 1, Count(1), shown=1),
    Row(
        "tensorflow_dataset_prefetch_buffer_size",
        "batches that are read ahead; train_reader_num_workers if 0",
        0,
        Count(0),
    ),
    Row("data_module", "class of what reads the data, a DataModule"),
)
"""Params of all estimators."""

MODEL = (
    Row("history", "by name of a figure, its value of each epoch", None, checks.mapping),
    Row("model", "the model that has been trained"),
    Row("feature_columns", "columns that the model takes, in its order", None, checks.names),
    Row("label_columns", "columns that the model has learnt", None, checks.names),
    Row(
        "output_cols",
        "columns that transform adds, one for each output; LABEL__output if not given",
        None,
        checks.names,
    ),
    Row("run_id", "name of the run in the store", None, checks.text),
    Row("_metadata", "what is known of the columns", None, checks.mapping),
    Row("batch_size", "rows that are predicted at once", 1024, Count(1)),
)
"""Params of all models."""
