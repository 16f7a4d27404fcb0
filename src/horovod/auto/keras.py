"""Patches for Keras 3: ``compile``, ``fit`` and model saving."""

import inspect
from typing import Any

import keras
import numpy as np

import horovod.keras as hvd
from horovod.auto.session import on_rank_0, refuse, session, wrap

_WRITERS = (keras.callbacks.TensorBoard, keras.callbacks.CSVLogger, keras.callbacks.BackupAndRestore)


def install() -> None:
    """Patch Keras in this process for data-parallel training."""
    if keras.__version__ < "3":
        refuse(f"it uses Keras {keras.__version__}", "install Keras 3")
    hvd.init()
    wrap(keras.Model, "compile", _compile)
    wrap(keras.Model, "fit", _fit)
    for name in ("save", "save_weights", "export"):
        wrap(keras.Model, name, on_rank_0)
    wrap(keras.Model, "train_on_batch", _apply)
    for name in ("apply", "stateless_apply"):
        wrap(keras.optimizers.Optimizer, name, _apply)
    for name in ("fit", "evaluate", "predict"):
        wrap(keras.Model, name, _suspended)


def _apply(plain: Any, *args: Any, **kwargs: Any) -> Any:
    if not session.suspended:
        refuse("it trains Keras models without fit()", "call model.fit()")
    return plain(*args, **kwargs)


def _suspended(plain: Any, *args: Any, **kwargs: Any) -> Any:
    session.suspended += 1
    try:
        return plain(*args, **kwargs)
    finally:
        session.suspended -= 1


def _compile(plain: Any, self: Any, optimizer: Any = "rmsprop", loss: Any = None, *args: Any, **kwargs: Any) -> None:
    losses = loss.values() if isinstance(loss, dict) else loss if isinstance(loss, list) else [loss]
    for one in losses:
        if getattr(one, "reduction", "sum_over_batch_size") != "sum_over_batch_size":
            refuse("its loss is not a mean over the samples", 'use reduction="sum_over_batch_size"')
    optimizer = keras.optimizers.get(optimizer)
    if session.lr_factor != 1:
        if isinstance(getattr(optimizer, "_learning_rate", None), keras.optimizers.schedules.LearningRateSchedule):
            refuse("--lr-scale cannot change a schedule of learning rates", "scale the schedule in the script")
        optimizer.learning_rate = float(optimizer.learning_rate) * session.lr_factor
    session.change("optimizers", f"{type(optimizer).__name__}: wrapped in hvd.DistributedOptimizer")
    plain(self, hvd.DistributedOptimizer(optimizer), loss, *args, **kwargs)


class Rows(keras.utils.PyDataset):  # type: ignore[misc]
    """This rank's rows of each batch, weighted so that averaging over ranks gives the mean over all samples."""

    def __init__(self, arrays: tuple[Any, Any, Any], batch_size: int, shuffle: bool) -> None:
        super().__init__()
        self._arrays = arrays
        self._count = len(keras.tree.flatten(arrays[0])[0])
        self._batch, self._random = batch_size * session.size, np.random.RandomState(session.seed) if shuffle else None
        self.on_epoch_end()

    def on_epoch_end(self) -> None:
        self._order = self._random.permutation(self._count) if self._random else np.arange(self._count)

    def __len__(self) -> int:
        return -(-self._count // self._batch)

    def __getitem__(self, index: int) -> Any:
        chunk = self._order[index * self._batch : (index + 1) * self._batch]
        own = chunk[session.rank :: session.size]
        weight = len(own) * session.size / len(chunk)
        own = own if len(own) else chunk[:1]  # a rank without rows of the batch gets one row with weight 0
        x, y, given = keras.tree.map_structure(lambda a: None if a is None else a[own], self._arrays)
        return x, y, weight * (np.ones(len(own), keras.config.floatx()) if given is None else given)


def _fit(plain: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    call = inspect.signature(plain).bind(self, *args, **kwargs)
    call.apply_defaults()
    a = call.arguments
    if a["y"] is None:
        refuse("fit() does not get arrays x and y", "pass arrays, or use horovod.keras")
    arrays = [keras.tree.map_structure(np.asarray, a[k]) if a[k] is not None else None for k in ("x", "y")]
    if any(one.dtype == object for one in keras.tree.flatten(arrays)):
        refuse("fit() gets x or y that is no array", "pass arrays, or use horovod.keras")
    for name in ("class_weight", "steps_per_epoch"):
        if a[name] is not None:
            refuse(f"fit() with {name} is not supported", "use sample_weight, or horovod.keras")
    weights = None if a["sample_weight"] is None else np.asarray(a["sample_weight"])
    parts = (*arrays, weights)
    if a["validation_split"]:
        split = int(len(keras.tree.flatten(parts[0])[0]) * (1 - a["validation_split"]))
        held = keras.tree.map_structure(lambda v: None if v is None else v[split:], parts)
        parts = keras.tree.map_structure(lambda v: None if v is None else v[:split], parts)
        a["validation_data"] = held if weights is not None else held[:2]
    rows = Rows(parts, a["batch_size"] or 32, bool(a["shuffle"]))
    callbacks = list(a["callbacks"] or [])
    if session.rank:
        callbacks = [one for one in callbacks if not isinstance(one, _WRITERS)]
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    broadcast.samples_compared = True  # allow different numbers of samples per rank, because the samples are weighted
    average = [broadcast, hvd.callbacks.MetricAverageCallback()]
    validation_batch = a["validation_batch_size"] or a["batch_size"]
    a.update(x=rows, y=None, sample_weight=None, batch_size=None, validation_split=0.0, shuffle=False)
    a.update(callbacks=[*average, *callbacks], validation_batch_size=validation_batch)
    session.change("calls of fit", f"fit: {len(rows)} steps of {rows._batch // session.size} samples on each rank")
    return plain(*call.args, **call.kwargs)
