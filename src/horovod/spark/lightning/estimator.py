"""Estimator and model for Lightning (TorchEstimator and TorchModel), with their additional params."""

from typing import Any

import torch

from horovod.common.contract.log import warn_user
from horovod.spark.common import checks
from horovod.spark.common.checks import Count, refuse
from horovod.spark.common.estimator import HorovodEstimator
from horovod.spark.common.params import Row, with_params, with_signature
from horovod.spark.common.plan import TrainingResult
from horovod.spark.lightning.datamodule import PetastormDataModule
from horovod.spark.torch import estimator as of_torch
from horovod.spark.torch.estimator import TORCH
from horovod.torch.lightning import is_module, package_of

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


MIN_PL_VERSION = "1.3.8"
"""Oldest version of Lightning that the original Horovod supported. Lightning 2 is tested here."""

_OWN_ARGUMENTS = {
    "strategy": "",
    "devices": "",
    "num_nodes": "",
    "accelerator": "use_gpu",
    "max_epochs": "epochs",
    "logger": "logger",
    "callbacks": "callbacks",
    "accumulate_grad_batches": "backward_passes_per_step",
}
"""Trainer arguments that the estimator sets, and the params that determine their values."""
_ORDER = (
    "num_proc model backend store optimizer loss loss_constructors metrics loss_weights sample_weight_col "
    "gradient_compression feature_cols input_shapes validation label_cols callbacks batch_size val_batch_size epochs "
    "verbose random_seed shuffle_buffer_size shuffle partitions_per_process run_id train_minibatch_fn "
    "train_steps_per_epoch validation_steps_per_epoch transformation_fn transformation_edit_fields "
    "transformation_removed_fields train_reader_num_workers trainer_args val_reader_num_workers"
)


@with_signature(_ORDER)
@with_params(*LIGHTNING)
class TorchEstimator(HorovodEstimator):
    """Estimator that trains a LightningModule on the ranks of a job.

    Each rank has a Trainer with distributed optimizers. A batch is a dict that maps column names to tensors. ``model``
    can also be a torch.nn.Module, with ``optimizer`` and ``loss`` as in ``horovod.spark.torch.TorchEstimator``. The
    history and ``log(..., sync_dist=True)`` contain means over all ranks. Callbacks are Lightning callbacks.

    If arguments are inconsistent, ``fit`` raises ValueError, usually before training.
    """

    _framework = "lightning"
    _data_module = PetastormDataModule

    def _feature_shapes(self) -> tuple[Any, str]:
        return self.getInputShapes(), "input_shapes"

    def _check(self) -> None:
        model = self.getModel()
        if not isinstance(model, torch.nn.Module):
            raise refuse("model", model, "a LightningModule, or a torch.nn.Module with optimizer and loss")
        package_of("horovod.spark.lightning", model)
        if self.getTrainMinibatchFn() is not None:
            raise ValueError(
                "train_minibatch_fn must not be given; define training_step of the LightningModule instead"
            )
        if wrong := [name for name in self.getTrainerArgs() or () if name in _OWN_ARGUMENTS]:
            param = f", by its param {_OWN_ARGUMENTS[wrong[0]]}" if _OWN_ARGUMENTS[wrong[0]] else ""
            raise ValueError(f"trainer_args must not have {wrong[0]!r}, which the estimator sets{param}")
        if not is_module(model):
            of_torch.check_torch(self)
            return
        of_torch.check_input_shapes(self)
        for name in ("optimizer", "loss", "loss_constructors", "loss_weights"):
            if self.getOrDefault(name) is not None:
                warn_user(f"{name} is ignored: the LightningModule defines it")

    def _payload(self) -> dict[str, Any]:
        names = (
            "model",
            "optimizer",
            "loss",
            "loss_constructors",
            "loss_weights",
            "callbacks",
            "input_shapes",
            "gradient_compression",
            "logger",
            "log_every_n_steps",
            "terminate_on_nan",
            "profiler",
        )
        given = {name: self.getOrDefault(name) for name in names}
        metrics = of_torch.named_metrics(self.getMetrics(), self.getLabelCols())
        return {**given, "trainer_args": self.getTrainerArgs() or {}, "metrics": metrics}

    def _train_in_rank(self) -> Any:
        from horovod.spark.lightning.remote import train

        return train

    def _module_arguments(self) -> dict[str, Any]:
        return {
            "debug_data_loader": self.getDebugDataLoader(),
            "train_async_data_loader_queue_size": self.getTrainAsyncDataLoaderQueueSize(),
            "val_async_data_loader_queue_size": self.getValAsyncDataLoaderQueueSize(),
        }

    def _model_of(self, outcome: TrainingResult, run_id: str, metadata: dict[str, Any]) -> "TorchModel":
        return of_torch.model_of(self, TorchModel, outcome, run_id, metadata)  # type: ignore[no-any-return]


class TorchModel(of_torch.TorchModel):
    """Trained LightningModule or torch.nn.Module. Its ``transform`` method adds the model's outputs to a DataFrame."""
