"""Additional params of Lightning estimators. Pure."""

from horovod.spark.common import checks
from horovod.spark.common.checks import Count
from horovod.spark.common.param_table import Row
from horovod.spark.torch.rows import TORCH

LIGHTNING = (
    *TORCH,
    Row(
        "trainer_args",
        "further arguments of lightning's Trainer; they count more than profiler",
        None,
        checks.mapping,
    ),
    Row("num_gpus", "accepted for old programs, without effect: each rank has one GPU or none", None, Count(0)),
    Row("logger", "a logger of lightning, used on rank 0"),
    Row("log_every_n_steps", "as of lightning's Trainer", 50, Count(1), shown=50),
    Row("loader_num_epochs", "accepted for old programs, without effect: loaders have no end", None, Count(1)),
    Row("terminate_on_nan", "fail when the loss is not a finite number", False, checks.flag, shown=False),
    Row("profiler", "as of lightning's Trainer"),
    Row("debug_data_loader", "log how long each batch is waited for", False, checks.flag, shown=False),
    Row("train_async_data_loader_queue_size", "batches that are read ahead", None, Count(0)),
    Row("val_async_data_loader_queue_size", "batches of validation that are read ahead", None, Count(0)),
)
