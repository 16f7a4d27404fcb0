"""The callbacks of the Keras faces, as mixins: the faces join them with the Callback class of the Keras in use."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from horovod._keras import batches, in_sync, noticing
from horovod.common.objects import allgather_object
from horovod.common.state import state


def _sync(model: Any) -> None:
    """With the JAX backend the values of variables are elsewhere while fit runs: brings them back; fit then takes them
    from the variables again."""
    sync = getattr(model, "jax_state_sync", None)
    if sync is not None:
        sync()


class BroadcastGlobalVariables:
    """Brings all ranks to the root's weights and optimizer state at the end of the first batch, when both exist.

    Random seeds of layers such as Dropout stay each rank's own. This callback, which all ranks have, also looks whether
    they have equally many batches (ValueError), and with HOROVOD_CHECK_IN_SYNC_STEPS compares models and optimizers.
    """

    _hvd_face: Any

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        """``root_rank``: whose state all get. ``device``: accepted for old programs. ``local_variables``: variables
        that stay as they are."""
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.local_variables = local_variables
        self.broadcast_done = False
        self._batches = 0
        self._in_epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        if batches.concerns(self.model):  # type: ignore[attr-defined]
            batches.check_plan(self._hvd_face, (self.params or {}).get("steps"))  # type: ignore[attr-defined]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._in_epoch = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        model = self.model  # type: ignore[attr-defined]
        self._in_epoch = batch + 1
        noticing.after_batch(model)
        if not self.broadcast_done:
            self._hvd_face.broadcast_model(model, self.root_rank, self.local_variables)
            self.broadcast_done = True
        self._batches += 1
        if in_sync.is_due(self._batches):
            in_sync.check_model(self._hvd_face, model, self.local_variables)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if batches.concerns(self.model):  # type: ignore[attr-defined]
            batches.check_epoch(self._hvd_face, epoch, self._in_epoch)
        # Callbacks after this one may write a checkpoint.
        if in_sync.is_due(0):
            in_sync.check_model(self._hvd_face, self.model, self.local_variables)  # type: ignore[attr-defined]


class MetricAverage:
    """Averages the metrics in ``logs`` over the ranks at the end of every epoch, in place, so that the callbacks after
    this one see the averages: put it before those that use metrics.

    Ranks count by the samples they have seen in the epoch (for ``val_`` metrics, in the validation), known from the
    model's own average of the loss. Ranks whose model keeps none, as with a ``train_step`` that does not update it, are
    averaged with equal weights, all of them if one is so. A metric that only some ranks have is averaged over those.
    """

    _hvd_face: Any

    def __init__(self, device: str = "") -> None:
        """``device``: accepted for old programs."""
        super().__init__()
        self.device = device
        self._trained: float | None = None
        self._validated = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._validated = False
        self._trained = None

    def on_test_begin(self, logs: Any = None) -> None:
        # The validation at the end of an epoch starts to count anew.
        self._trained = self._samples()
        self._validated = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if state.require_job().size == 1:
            return
        counted = self._samples()
        trained, tested = (self._trained, counted) if self._validated else (counted, None)
        values = {key: float(value) for key, value in (logs or {}).items() if _is_number(value)}
        everybody = allgather_object(
            (values, trained, tested), name="MetricAverageCallback", face=self._hvd_face.adapter.face
        )
        for key in values if logs is not None else ():
            which = 2 if key.startswith("val_") else 1
            logs[key] = average([(entry[0][key], entry[which]) for entry in everybody if key in entry[0]])

    def _samples(self) -> float | None:
        model = self.model  # type: ignore[attr-defined]
        _sync(model)
        loss = next((metric for metric in model.metrics if metric.name == "loss" and hasattr(metric, "count")), None)
        return None if loss is None else float(loss.count)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool | str) or getattr(value, "shape", ()) not in ((), None):
        return False
    return hasattr(value, "__float__")


def average(pairs: list[tuple[float, float | None]]) -> float:
    """Of (value, weight) pairs: with equal weights unless all are known and not all zero."""
    first = pairs[0][0]
    if all(value == first for value, _ in pairs):
        return first  # exactly
    total = sum(weight or 0.0 for _, weight in pairs)
    if total <= 0 or any(weight is None for _, weight in pairs):
        return sum(value for value, _ in pairs) / len(pairs)
    # 0 * infinity is no number: a rank that has seen nothing says nothing.
    return sum(value * weight for value, weight in pairs if weight) / total


class LearningRateSchedule:
    """Sets the learning rate to ``initial_lr * multiplier(epoch)``, at the beginning of epochs or, with ``staircase``
    False, of batches, where ``epoch`` is a fraction.

    Momentum correction (Goyal et al., Accurate, Large Minibatch SGD, 2017): an optimizer with momentum whose velocities
    contain the learning rate has them scaled with it, so that past gradients count as if they had been taken with the
    new one.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        """``multiplier``: a number (``staircase`` is True then) or a function of the epoch. ``start_epoch``,
        ``end_epoch``: first epoch in which it acts, and first in which it acts no more. ``steps_per_epoch``: batches in
        an epoch, needed when fit does not know.

        ValueError for an ``initial_lr`` that is no number.
        """
        super().__init__()
        if isinstance(initial_lr, bool) or not hasattr(initial_lr, "__float__"):
            raise ValueError(f"initial_lr is {initial_lr!r}; accepted are numbers")
        if not callable(multiplier) and not hasattr(multiplier, "__float__"):
            raise ValueError(f"multiplier is {multiplier!r}; accepted are numbers and functions of the epoch")
        self.initial_lr = float(initial_lr)
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase or not callable(multiplier)
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.multiplier: Callable[[float], float] = multiplier if callable(multiplier) else lambda epoch: multiplier
        self.current_epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = _steps(self.params)  # type: ignore[attr-defined]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.current_epoch = epoch
        if self.staircase and self._acts():
            self._adjust(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not self.staircase and self._acts():
            self._adjust(self.current_epoch + batch / self.steps_per_epoch)  # type: ignore[operator]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            logs["lr"] = learning_rate(self.model)  # type: ignore[attr-defined]

    def _acts(self) -> bool:
        return self.current_epoch >= self.start_epoch and (
            self.end_epoch is None or self.current_epoch < self.end_epoch
        )

    def _adjust(self, epoch: float) -> None:
        model = self.model  # type: ignore[attr-defined]
        _sync(model)
        old, new = learning_rate(model), self.initial_lr * self.multiplier(epoch)
        set_learning_rate(model, new)
        if self.momentum_correction and old > 0 and new != old:
            scale_velocities(model, new / old)


class LearningRateWarmup(LearningRateSchedule):
    """Raises the learning rate from ``initial_lr / size`` to ``initial_lr`` over the first epochs, batch by batch, as
    Goyal et al. do (see LearningRateSchedule): ``initial_lr`` is the one already multiplied by the number of ranks.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        """``verbose``: 1 makes the callback print when it is done."""
        if isinstance(warmup_epochs, bool) or not hasattr(warmup_epochs, "__float__") or warmup_epochs < 0:
            raise ValueError(f"warmup_epochs is {warmup_epochs!r}; accepted are numbers from 0 on")

        def multiplier(epoch: float) -> float:
            size = state.require_job().size
            # The end of a batch counts, so that round numbers come out at the end of epochs.
            done = min(1.0, (epoch + 1.0 / (self.steps_per_epoch or 1)) / warmup_epochs)
            return (1 + done * (size - 1)) / size

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.verbose and self.end_epoch is not None and epoch == self.end_epoch - 1:
            rate = learning_rate(self.model)  # type: ignore[attr-defined]
            print(f"Epoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.", flush=True)


class BestModel:
    """Saves the model when the monitored metric is the best so far. ``filepath`` is set after the callback is made."""

    def __init__(self, monitor: str, verbose: int, save_weights_only: bool, mode: str, save_freq: Any) -> None:
        # Keras wants a path with the right ending.
        path = "best.weights.h5" if save_weights_only else "best.keras"
        super().__init__(  # type: ignore[call-arg]
            path,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath: Any = None

    def _save_model(self, *args: Any, **kwargs: Any) -> Any:
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint: filepath is None; set callback.filepath before training")
        self.filepath = os.fspath(self.filepath)  # Keras fills in its places, as in "{epoch}", by str.format
        return super()._save_model(*args, **kwargs)  # type: ignore[misc]


def _steps(params: Mapping[str, Any] | None) -> int:
    params = params or {}
    if params.get("steps"):
        return int(params["steps"])
    if params.get("samples") and params.get("batch_size"):
        return int(params["samples"]) // int(params["batch_size"])
    raise ValueError("steps_per_epoch is None and fit does not know the number of batches; give steps_per_epoch")


def _plain_optimizer(model: Any) -> Any:
    """The one that has learning rate and velocities: the inner one under loss scaling."""
    optimizer = model.optimizer
    return getattr(optimizer, "inner_optimizer", optimizer)


def _rate_name(optimizer: Any) -> str:
    return "learning_rate" if hasattr(optimizer, "learning_rate") else "lr"


def learning_rate(model: Any) -> float:
    """The learning rate in force."""
    _sync(model)
    optimizer = _plain_optimizer(model)
    rate = getattr(optimizer, _rate_name(optimizer))
    return float(rate.numpy() if hasattr(rate, "numpy") else rate)


def set_learning_rate(model: Any, value: float) -> None:
    """ValueError for an optimizer whose rate comes from a schedule of Keras."""
    optimizer = _plain_optimizer(model)
    own = getattr(optimizer, "_learning_rate", None)
    if callable(own) and not hasattr(own, "assign"):
        raise ValueError(
            f"the optimizer's learning_rate is a {type(own).__name__}, which a callback cannot change; accepted is a "
            "number"
        )
    setattr(optimizer, _rate_name(optimizer), value)


def scale_velocities(model: Any, factor: float) -> None:
    """Multiplies the momentum buffers of SGD, RMSprop and what derives from them: they contain the learning rate. Those
    of others, as of Muon, do not."""
    optimizer = _plain_optimizer(model)
    kinds = [kind for kind in type(optimizer).__mro__ if kind.__module__.partition(".")[0] in ("keras", "tf_keras")]
    if not any(kind.__name__ in ("SGD", "RMSprop") for kind in kinds):
        return
    if hasattr(optimizer, "get_slot_names"):  # legacy optimizers of Keras 2
        if "momentum" not in optimizer.get_slot_names():
            return
        velocities = [optimizer.get_slot(variable, "momentum") for variable in model.trainable_weights]
    else:
        velocities = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or []
    for velocity in velocities:
        if velocity is not None:
            velocity.assign(velocity * factor)
