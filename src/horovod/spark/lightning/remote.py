"""Training function that each rank of Lightning's TorchEstimator calls."""

import math
import pickle
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch

import horovod.torch as hvd
from horovod.spark.common.plan import TrainingPlan, TrainingResult, pick, prepare_rank
from horovod.spark.torch import losses, remote
from horovod.spark.torch.losses import floating_dtype, outputs_of, shapes_of, split
from horovod.spark.torch.remote import own_device
from horovod.torch.lightning import HorovodStrategy, is_module, package_of

# -- a LightningModule of a torch.nn.Module, an optimizer and losses -------------------------------------------------


def wrap(pl: Any, payload: dict[str, Any], plan: TrainingPlan) -> Any:
    """Return a LightningModule that trains the way ``horovod.spark.torch.TorchEstimator`` does."""
    functions = losses.make(payload["loss"], payload["loss_constructors"], plan.weight is not None, len(plan.labels))

    class Wrapped(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = payload["model"]

        def forward(self, *inputs: Any) -> Any:
            return self.inner(*inputs)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return self._figures(batch, "")

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self._figures(batch, "val_")

        def configure_optimizers(self) -> Any:
            return payload["optimizer"]

        def _figures(self, batch: Any, prefix: str) -> torch.Tensor:
            outputs = outputs_of(self.inner(*pick(batch, plan.features, "feature_cols")))
            labels = pick(batch, plan.labels, "label_cols")
            weights = None if plan.weight is None else pick(batch, [plan.weight], "sample_weight_col")[0]
            loss = losses.total(functions, payload["loss_weights"], outputs, labels, weights)
            rows = len(labels[0])
            self.log(f"{prefix}loss", loss, on_step=False, on_epoch=True, batch_size=rows)
            for name, function, place in payload["metrics"]:
                output, label = outputs[place], labels[place]
                value = function(output, losses.shaped_like(label, output))
                value = torch.as_tensor(value, dtype=torch.float32, device=output.device)
                self.log(f"{prefix}{name}", value, on_step=False, on_epoch=True, batch_size=rows)
            return loss

    return Wrapped()


def train(plan: TrainingPlan) -> TrainingResult | None:
    """Train on this rank. Return the TrainingResult on rank 0, and None on all other ranks."""
    hvd.init()
    try:
        prepare_rank(plan, hvd.rank())
        if plan.seed is not None:
            torch.manual_seed(plan.seed)
        with plan.open_data(hvd.rank(), hvd.size()) as data:
            return _fit(plan, pickle.loads(plan.payload), data)
    finally:
        hvd.shutdown()


def _fit(plan: TrainingPlan, payload: dict[str, Any], data: Any) -> TrainingResult | None:
    model = payload["model"]
    pl = package_of("horovod.spark.lightning", model)
    if plan.checkpoint is not None:
        where = plan.remote.checkpoint_path
        remote.put_into(remote.load(plan.checkpoint, where), model, None, where)
    device = own_device(plan.use_gpu)
    module = model if is_module(model) else wrap(pl, payload, plan)
    watch = _watch(pl, plan, model, payload["terminate_on_nan"])
    trainer = pl.Trainer(
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=1,
        strategy=HorovodStrategy(payload["gradient_compression"] or hvd.Compression.none, device=device, package=pl),
        max_epochs=plan.epochs,
        accumulate_grad_batches=plan.backward_passes_per_step,
        callbacks=[*payload["callbacks"], watch],
        logger=payload["logger"] if payload["logger"] is not None and hvd.rank() == 0 else False,
        **{
            "num_sanity_val_steps": 0,
            "log_every_n_steps": payload["log_every_n_steps"],
            "profiler": payload["profiler"],
            "enable_checkpointing": any(isinstance(one, pl.callbacks.Checkpoint) for one in payload["callbacks"]),
            "enable_progress_bar": plan.verbose == 1 and hvd.rank() == 0,
            "enable_model_summary": bool(plan.verbose) and hvd.rank() == 0,
            **payload["trainer_args"],
        },
    )
    dtype = floating_dtype(model)
    val = None if plan.val is None else _Loader(iter(data.val_data()), plan, payload, dtype, plan.val_steps)
    training = _Loader(iter(data.train_data()), plan, payload, dtype, plan.steps)
    trainer.fit(module, train_dataloaders=training, val_dataloaders=val)
    if trainer.interrupted:
        raise KeyboardInterrupt
    if hvd.rank() != 0:
        return None
    return TrainingResult(watch.history, remote.dump(model, None, plan.epochs - 1), _outputs(model, training))


class _Loader:
    """Loader that yields one epoch of batches from an endless stream.

    The batches are dicts of tensors in the model's shapes and dtypes. The class defines a length, because Lightning
    would otherwise consume an additional batch per epoch.
    """

    def __init__(
        self, batches: Iterator[Any], plan: TrainingPlan, payload: dict[str, Any], dtype: Any, steps: int
    ) -> None:
        self._batches, self._plan, self._shapes = batches, plan, payload["input_shapes"]
        self._dtype, self._steps = dtype, steps
        self.features: Any = None

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Any]:
        plan = self._plan
        for _ in range(self._steps):
            batch = next(self._batches)
            features, labels, weights = split(batch, plan, self._shapes, self._dtype, "cpu")
            self.features = self.features or features
            used = dict(zip((*plan.features, *plan.labels), (*features, *labels), strict=True))
            yield {**batch, **used, **({} if plan.weight is None else {plan.weight: weights})}


def _watch(pl: Any, plan: TrainingPlan, model: torch.nn.Module, finite: bool) -> Any:
    """Return a callback that records the history and saves checkpoints.

    If `finite` is True, it rejects infinite losses.
    """

    class Watch(pl.callbacks.Callback):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self._all: dict[str, list[float]] = defaultdict(list)

        @property
        def history(self) -> dict[str, list[float]]:
            return dict(self._all)

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            if finite and loss is not None and not math.isfinite(float(loss)):
                raise ValueError(f"the loss is {float(loss)} in batch {batch_idx} of epoch {trainer.current_epoch}")

        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            figures = {name: float(value) for name, value in sorted(trainer.callback_metrics.items())}
            if figures:  # Average the metrics across ranks, because each rank computes them only for its own rows.
                own = torch.tensor(list(figures.values()), dtype=torch.float64, device="cpu")
                figures = dict(zip(figures, hvd.allreduce(own, name="spark.figures").tolist(), strict=True))
            for name, value in figures.items():
                self._all[name].append(value)
            if hvd.rank() != 0:
                return
            if plan.verbose == 2:
                words = "  ".join(f"{name} {value:.4f}" for name, value in figures.items())
                print(f"epoch {trainer.current_epoch + 1}/{plan.epochs}  {words}", flush=True)
            if plan.remote.saving_runs:
                data = remote.dump(model, None, trainer.current_epoch)
                plan.remote.store.write(plan.remote.checkpoint_path, data)

    return Watch()


@torch.no_grad()
def _outputs(model: torch.nn.Module, loader: _Loader) -> list[Any]:
    if loader.features is None:
        return []
    model.to("cpu").eval()
    return shapes_of(outputs_of(model(*[one[:1] for one in loader.features])))
