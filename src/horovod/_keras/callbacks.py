"""Mixins for the Keras frontends' callbacks, to be combined with Keras' Callback class."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from horovod._keras import checks
from horovod._keras.backend import is_legacy
from horovod.common.frontends import state
from horovod.common.ops import Average

# -- learning rates and the velocities that contain them -------------------------------------------------------------


def bring_values(model: Any) -> None:
    """Copy the current values to the model's variables, which are out of date on JAX while ``fit`` runs.

    After a callback, ``fit`` reads the variables again.
    """
    sync = getattr(model, "jax_state_sync", None)
    if sync is not None:
        sync()


def sample_count(model: Any) -> float | None:
    """Return the number of samples in the model's average loss, or None if the model tracks no average."""
    bring_values(model)
    loss = next((metric for metric in model.metrics if metric.name == "loss" and hasattr(metric, "count")), None)
    return None if loss is None else float(loss.count)


def _plain_optimizer(model: Any) -> Any:
    """Return the optimizer that owns the learning rate. With loss scaling, this is the inner optimizer."""
    optimizer = model.optimizer
    return getattr(optimizer, "inner_optimizer", optimizer)


def _rate_name(optimizer: Any) -> str:
    return "learning_rate" if hasattr(optimizer, "learning_rate") else "lr"


def learning_rate(model: Any) -> float:
    """Return the current learning rate."""
    bring_values(model)
    optimizer = _plain_optimizer(model)
    rate = getattr(optimizer, _rate_name(optimizer))
    return float(rate.numpy() if hasattr(rate, "numpy") else rate)


def current_rate(model: Any) -> float | None:
    """Return the current learning rate, or None if it cannot be read."""
    try:
        return learning_rate(model)
    except (AttributeError, TypeError, ValueError, RuntimeError, NotImplementedError):
        return None


def set_learning_rate(model: Any, value: float) -> None:
    """Set the learning rate of an optimizer.

    Raises:
        ValueError: If the optimizer's learning rate is a Keras schedule.
    """
    optimizer = _plain_optimizer(model)
    own = getattr(optimizer, "_learning_rate", None)
    if callable(own) and not hasattr(own, "assign"):
        raise ValueError(
            f"the optimizer's learning_rate must be a number, which a callback can change, got a {type(own).__name__}"
        )
    setattr(optimizer, _rate_name(optimizer), value)


def scale_velocities(model: Any, factor: float) -> None:
    """Multiply the momentum buffers of SGD, RMSprop and their subclasses by ``factor``.

    Only the buffers of these optimizers include the learning rate.
    """
    optimizer = _plain_optimizer(model)
    kinds = [kind for kind in type(optimizer).__mro__ if kind.__module__.partition(".")[0] in ("keras", "tf_keras")]
    if not any(kind.__name__ in ("SGD", "RMSprop") for kind in kinds):
        return
    if hasattr(optimizer, "get_slot_names"):
        # In Keras 2, only legacy optimizers have slots, whose names identify the momentum buffers.
        if "momentum" not in optimizer.get_slot_names():
            return
        velocities = [optimizer.get_slot(variable, "momentum") for variable in model.trainable_weights]
    else:
        velocities = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or []
    for velocity in velocities:
        if velocity is not None:
            velocity.assign(velocity * factor)


class BroadcastGlobalVariables:
    """Callback that broadcasts weights and optimizer state from one rank to all ranks.

    The broadcast takes place before the first batch, or after it if any rank has not created its variables by then.
    Random seeds of layers such as Dropout are not broadcast. All ranks must have this callback.

    The callback also compares the ranks: number of batches, current epoch, learning rate, and whether a rank has
    finished its training. If these differ, it raises ValueError on all ranks. With HOROVOD_CHECK_IN_SYNC_STEPS it
    compares models and optimizers as well.

    Args:
        root_rank (int): Rank whose state is sent.
        device (str): Ignored; accepted for compatibility.
        local_variables (Iterable, optional): Variables that are not changed.
    """

    _hvd_frontend: Any

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.local_variables = local_variables
        self.broadcast_done = False
        self._processes: Any = None  # Hosts and process ids of the job in which the last broadcast was made.
        self._batches = 0
        self._epoch = 0
        self._in_epoch = 0
        # True once the ranks have compared their positions in the current epoch.
        self._has_place = False
        self._samples: float | None = None
        # True once the ranks have compared their sample counts.
        self.samples_compared = False
        self._all_built = False

    def on_train_begin(self, logs: Any = None) -> None:
        model = self.model  # type: ignore[attr-defined]
        if checks.concerns(model):
            checks.check_plan(self._hvd_frontend, (self.params or {}).get("steps"))  # type: ignore[attr-defined]
        job = state.require_job()
        processes = job.hosts, job.pids
        if self._processes not in (None, processes):
            # Let all ranks decide together whether to broadcast, because some ranks of an elastic job may be new.
            self.broadcast_done = False
        self._processes = processes
        if not self.broadcast_done and job.size > 1:
            shapes = self._hvd_frontend.shared_shapes(model, self.local_variables)
            self._all_built = checks.all_built(self._hvd_frontend, shapes)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch, self._in_epoch, self._has_place, self._samples = epoch, 0, False, None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        # Broadcast only at the first batch, because other callbacks may load weights or set learning rates until then.
        if self._all_built and not self.broadcast_done:
            self._broadcast()
        if not self._has_place:
            self._has_place = True
            self._check_place(ended=False)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        model = self.model  # type: ignore[attr-defined]
        self._in_epoch = batch + 1
        checks.after_batch(model)
        if not self.broadcast_done:
            self._broadcast()
        self._batches += 1
        if checks.is_due(self._batches):
            checks.check_model(self._hvd_frontend, model, self.local_variables)

    def on_test_begin(self, logs: Any = None) -> None:
        # Count the training samples now, because validation resets the metrics from which they are counted.
        self._count_samples()

    def _count_samples(self) -> None:
        """Count this rank's samples in the first epoch, to warn if the ranks' counts differ.

        With weighted averages, no warning is needed.
        """
        model = self.model  # type: ignore[attr-defined]
        control = getattr(model.optimizer, "_hvd", None)
        alike = control is not None and control.reduction.weight is None and control.reduction.op == Average
        if alike and not self.samples_compared and self._samples is None and not is_legacy(self._hvd_frontend.keras):
            self._samples = sample_count(model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        model = self.model  # type: ignore[attr-defined]
        if checks.concerns(model):
            self._count_samples()
            stopped = bool(getattr(model, "stop_training", False))
            checks.check_epoch(self._hvd_frontend, epoch, self._in_epoch, self._samples, stopped)
            self.samples_compared = True
        # Run the check before later callbacks can write a checkpoint.
        if checks.is_due(0):
            checks.check_model(self._hvd_frontend, model, self.local_variables)

    def on_train_end(self, logs: Any = None) -> None:
        self._check_place(ended=True)

    def _broadcast(self) -> None:
        self._hvd_frontend.broadcast_model(self.model, self.root_rank, self.local_variables)  # type: ignore[attr-defined]
        self.broadcast_done = True

    def _check_place(self, ended: bool) -> None:
        model = self.model  # type: ignore[attr-defined]
        if checks.concerns(model):
            # Do not compare learning rates before the broadcast in the first step, because they can differ between
            # ranks until then.
            rate = current_rate(model) if self.broadcast_done and not ended else None
            checks.check_place(self._hvd_frontend, checks.Position(self._epoch, ended, rate))


class LearningRateSchedule:
    """Callback that sets the learning rate to ``initial_lr * multiplier(epoch)``.

    The rate is set at the beginning of each epoch. With ``staircase=False``, it is set at the beginning of each batch,
    and ``epoch`` is fractional.

    Momentum correction (Goyal et al., Accurate, Large Minibatch SGD, 2017): if an optimizer's velocities contain the
    learning rate, they are scaled with it, so that past gradients count as if they had been applied with the new rate.

    Args:
        initial_lr (float): Base learning rate.
        multiplier (float or Callable[[float], float]): Factor, or a function of the epoch. A number implies
            ``staircase=True``.
        start_epoch (int): First epoch in which the callback acts. Default: 0.
        end_epoch (int, optional): First epoch in which it no longer acts. Default: none.
        staircase (bool): Change the rate only at the beginning of epochs. Default: True.
        momentum_correction (bool): Scale velocities with the rate. Default: True.
        steps_per_epoch (int, optional): Batches per epoch; required if ``fit`` does not know the number.

    Raises:
        ValueError: If ``initial_lr`` or ``multiplier`` is invalid.
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
        super().__init__()
        if isinstance(initial_lr, bool) or not hasattr(initial_lr, "__float__"):
            raise ValueError(f"initial_lr must be a number, got {initial_lr!r}")
        if not callable(multiplier) and not hasattr(multiplier, "__float__"):
            raise ValueError(f"multiplier must be a number or a function of the epoch, got {multiplier!r}")
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
        bring_values(model)
        old, new = learning_rate(model), self.initial_lr * self.multiplier(epoch)
        set_learning_rate(model, new)
        if self.momentum_correction and old > 0 and new != old:
            scale_velocities(model, new / old)


class LearningRateWarmup(LearningRateSchedule):
    """Callback that raises the learning rate from ``initial_lr / size`` to ``initial_lr`` over the first epochs.

    The rate changes with every batch, following Goyal et al. (see LearningRateScheduleCallback).

    Args:
        initial_lr (float): Target learning rate, already multiplied by the number of ranks.
        warmup_epochs (int): Number of epochs. Default: 5.
        momentum_correction (bool): Scale velocities with the rate. Default: True.
        steps_per_epoch (int, optional): Batches per epoch; required if ``fit`` does not know the number.
        verbose (int): 1 prints a message at the end of the warmup. Default: 0.

    Raises:
        ValueError: If ``initial_lr`` or ``warmup_epochs`` is invalid.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        if isinstance(warmup_epochs, bool) or not hasattr(warmup_epochs, "__float__") or warmup_epochs < 0:
            raise ValueError(f"warmup_epochs must be a number of at least 0, got {warmup_epochs!r}")

        def multiplier(epoch: float) -> float:
            size = state.require_job().size
            # Use the learning rate for the end of the batch, so that an epoch ends exactly at its target rate.
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
    """Callback that saves the model whenever the monitored metric reaches a new best value.

    ``filepath`` must be set after the callback has been created.
    """

    def __init__(self, monitor: str, verbose: int, save_weights_only: bool, mode: str, save_freq: Any) -> None:
        # Pass a placeholder path, because Keras requires a path with a known suffix.
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
            raise ValueError(
                "BestModelCheckpoint: filepath must be a path, got None; set callback.filepath before training"
            )
        self.filepath = os.fspath(self.filepath)  # Keras fills in fields such as "{epoch}" with str.format.
        return super()._save_model(*args, **kwargs)  # type: ignore[misc]


def _steps(params: Mapping[str, Any] | None) -> int:
    params = params or {}
    if params.get("steps"):
        return int(params["steps"])
    if params.get("samples") and params.get("batch_size"):
        return int(params["samples"]) // int(params["batch_size"])
    raise ValueError("steps_per_epoch is None and fit does not know the number of batches; give steps_per_epoch")
