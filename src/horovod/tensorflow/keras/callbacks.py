"""Callbacks for the ``fit`` method of Keras models."""

from typing import Any

from horovod._keras.api import open_frontend as _open_frontend

_classes = _open_frontend(only="tensorflow").callbacks

BroadcastGlobalVariablesCallback = _classes.BroadcastGlobalVariablesCallback
MetricAverageCallback = _classes.MetricAverageCallback
LearningRateScheduleCallback = _classes.LearningRateScheduleCallback
LearningRateWarmupCallback = _classes.LearningRateWarmupCallback


class BestModelCheckpoint(_classes.BestModel):  # type: ignore[misc, name-defined]
    """ModelCheckpoint that saves only the best model. Set ``filepath`` after creating the callback.

    Args:
        monitor (str): Metric to compare. Default: "val_loss".
        verbose (int): Same as in Keras' ModelCheckpoint. Default: 0.
        save_weights_only (bool): Same as in Keras' ModelCheckpoint. Default: False.
        mode (str): Same as in Keras' ModelCheckpoint. Default: "auto".
        save_freq (str or int): Same as in Keras' ModelCheckpoint. Default: "epoch".
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
    ) -> None:
        super().__init__(monitor, verbose, save_weights_only, mode, save_freq)


for _class in (
    BroadcastGlobalVariablesCallback,
    MetricAverageCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
):
    _class.__module__ = __name__

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
