"""Wrapper that turns a torch.nn.Module with optimizer and losses into a LightningModule."""

from typing import Any

import torch

from horovod.spark.common.plan import Plan, pick
from horovod.spark.torch import losses
from horovod.spark.torch.batches import outputs_of


def wrap(pl: Any, given: dict[str, Any], plan: Plan) -> Any:
    """Return a LightningModule that trains like ``horovod.spark.torch.TorchEstimator``."""
    functions = losses.made(given["loss"], given["loss_constructors"], plan.weight is not None, len(plan.labels))

    class Wrapped(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = given["model"]

        def forward(self, *inputs: Any) -> Any:
            return self.inner(*inputs)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return self._figures(batch, "")

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self._figures(batch, "val_")

        def configure_optimizers(self) -> Any:
            return given["optimizer"]

        def _figures(self, batch: Any, prefix: str) -> torch.Tensor:
            outputs = outputs_of(self.inner(*pick(batch, plan.features, "feature_cols")))
            labels = pick(batch, plan.labels, "label_cols")
            weights = None if plan.weight is None else pick(batch, [plan.weight], "sample_weight_col")[0]
            loss = losses.total(functions, given["loss_weights"], outputs, labels, weights)
            rows = len(labels[0])
            self.log(f"{prefix}loss", loss, on_step=False, on_epoch=True, batch_size=rows)
            for name, function, place in given["metrics"]:
                output, label = outputs[place], labels[place]
                value = function(output, losses.shaped_like(label, output))
                value = torch.as_tensor(value, dtype=torch.float32, device=output.device)
                self.log(f"{prefix}{name}", value, on_step=False, on_epoch=True, batch_size=rows)
            return loss

    return Wrapped()
