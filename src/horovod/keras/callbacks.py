"""Callbacks for the ``fit`` method of Keras models."""

from typing import Any

from horovod._keras.api import open_frontend as _open_frontend

_classes = _open_frontend().callbacks

BroadcastGlobalVariablesCallback = _classes.BroadcastGlobalVariablesCallback
MetricAverageCallback = _classes.MetricAverageCallback
LearningRateScheduleCallback = _classes.LearningRateScheduleCallback
LearningRateWarmupCallback = _classes.LearningRateWarmupCallback


class BestModelCheckpoint(_classes.BestModel):  # type: ignore[misc, name-defined]
    """ModelCheckpoint that saves only the best model. ``filepath`` must be set after the callback has been created.

    Args:
        monitor (str): Metric to compare. Default: "val_loss".
        verbose (int): Same as in Keras' ModelCheckpoint. Default: 0.
        mode (str): Same as in Keras' ModelCheckpoint. Default: "auto".
        save_freq (str or int): Same as in Keras' ModelCheckpoint. Default: "epoch".
    """

    def __init__(
        self, monitor: str = "val_loss", verbose: int = 0, mode: str = "auto", save_freq: Any = "epoch"
    ) -> None:
        super().__init__(monitor, verbose, False, mode, save_freq)


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
