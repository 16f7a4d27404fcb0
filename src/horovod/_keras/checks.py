"""Checks that ranks have the same values and run the same steps, for ``fit`` and ``check_in_sync``.

Without these checks, ranks would wait for gradients that never arrive, or silently diverge. Before the first epoch,
ranks compare the number of batches per epoch. At the beginning of each epoch they compare the epoch's number and the
learning rate, and check that no rank has finished its training. At the end of each epoch they compare its number of
batches.
"""

import functools
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from horovod._keras.backend import backend_of, is_legacy
from horovod.common import in_sync
from horovod.common.contract import log
from horovod.common.contract.log import warn_user
from horovod.common.contract.settings import LOG_LEVELS, Settings
from horovod.common.exceptions import HorovodInternalError
from horovod.common.frontends import state
from horovod.common.objects import allgather_object
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.training_loop.observations import check_launch, training

# -- equal values, based on ``horovod.common.in_sync`` ---------------------------------------------------------------


def check(
    frontend: Any,
    objects: Sequence[Any],
    named: Mapping[str, Any],
    process_set: ProcessSet = global_process_set,
    ignore: Collection[str] = (),
    local_variables: Iterable[Any] = (),
) -> str:
    """Compare values between ranks, as ``check_in_sync`` in ``api.py`` describes.

    ``frontend`` is an api.Frontend. The check skips ``local_variables``, and variables that are registered as local in
    the optimizer.
    """

    def leaves() -> dict[str, in_sync.Leaf]:
        given = in_sync.named(objects, named, in_sync.name_of)
        for value in given.values():
            sync = getattr(value, "jax_state_sync", None)
            if sync is not None:
                sync()  # Update the model's variables first, because on JAX they are out of date while fit runs.
        local = {frontend.adapter.key(variable) for variable in local_variables}.union(*map(_local, given.values()))
        read = in_sync.reader(_to_numpy(frontend.keras), lambda variable: frontend.adapter.key(variable) in local)
        return in_sync.fingerprints(given, read, in_sync.check_ignore(ignore))

    return in_sync.check(leaves, process_set, frontend.adapter.frontend)


def check_model(frontend: Any, model: Any, local_variables: Any = None) -> None:
    """Compare the model's values across ranks while ``fit`` runs.

    If there are local variables, the optimizer's state is not compared, because it differs between ranks.
    """
    local = list(local_variables or ())
    ignore = ["model.optimizer.*"] if local or _local(model) else []
    check(frontend, [model], {}, ignore=ignore, local_variables=local)


def is_due(steps: int) -> bool:
    """Return True if ranks should be compared after step number ``steps`` (HOROVOD_CHECK_IN_SYNC_STEPS)."""
    job = state.job
    return job is not None and job.check_steps > 0 and steps % job.check_steps == 0


def _local(value: Any) -> set[Any]:
    """Return the keys of local variables, which are variables whose gradients are not reduced."""
    control = getattr(getattr(value, "optimizer", value), "_hvd", None)
    return control.reduction.local if control is not None else set()


def _to_numpy(keras: Any) -> Any:
    if not is_legacy(keras):
        if backend_of(keras) == "tensorflow":
            _require_eager()
        return keras.ops.convert_to_numpy
    _require_eager()
    return lambda value: value.numpy() if hasattr(value, "numpy") else value


def _require_eager() -> None:
    import tensorflow as tf

    if not tf.executing_eagerly():
        raise RuntimeError("check_in_sync works in eager code only, not in graphs and tf.functions")


# -- equal epochs and batches ----------------------------------------------------------------------------------------

_ADVICE = "give all ranks the same number, for example with hvd.sync(data), dataset.take(n) or fit(steps_per_epoch=n)"
_SAME_CALLBACKS = "pass it on all ranks, after MetricAverageCallback, so that all ranks decide the same"


class Position(NamedTuple):
    """Epoch and learning rate that a rank has reached in ``fit``, which must be the same on all ranks."""

    epoch: int
    """Epoch that begins, or the last one if training has ended; from 0."""
    ended: bool
    """True if this rank's training has ended after that epoch."""
    rate: float | None
    """Learning rate, or None if it is unknown."""


def concerns(model: Any) -> bool:
    """Return True if the optimizers of all ranks reduce gradients while this model's ``fit`` runs."""
    control = getattr(getattr(model, "optimizer", None), "_hvd", None)
    return control is not None and control.reduction.process_set is global_process_set and state.require_job().size > 1


def check_plan(frontend: Any, steps: int | None) -> None:
    """Check before the first epoch that all ranks have the same number of batches per epoch.

    All ranks must call this. ``steps`` is the number of batches per epoch, or None if unknown.

    Raises:
        ValueError: If the numbers differ. Raised on all ranks.
    """
    from_all = allgather_object(steps, "fit.steps", global_process_set, frontend.adapter.frontend)
    _compare([count for count in from_all if count is not None], from_all, "in an epoch")


def all_built(frontend: Any, shapes: list[str] | None) -> bool:
    """Return True if the variables to broadcast already exist on all ranks.

    All ranks must call this function.

    Args:
        frontend: ``api.Frontend`` of this process.
        shapes: Result of ``Frontend.shared_shapes`` on this rank.

    Raises:
        ValueError: If ranks have different variables. Raised on all ranks.
    """
    from_all = allgather_object(shapes, "fit.variables", global_process_set, frontend.adapter.frontend)
    if any(one is None for one in from_all):
        return False
    for rank, theirs in enumerate(from_all):
        if theirs != from_all[0]:
            first = next((i for i, (a, b) in enumerate(zip(from_all[0], theirs, strict=False)) if a != b), None)
            differ = (
                f"{len(from_all[0])} and {len(theirs)} variables"
                if first is None
                else f"variable {first} is {from_all[0][first]} and {theirs[first]}"
            )
            raise ValueError(
                f"fit: model and optimizer of rank 0 and rank {rank} differ: {differ}; all ranks must build the same "
                "model and compile it with the same kind of optimizer"
            )
    return True


def check_place(frontend: Any, place: Position) -> None:
    """Check that all ranks are in the same epoch with the same learning rate.

    Args:
        frontend: ``api.Frontend`` of this process.
        place: This rank's position in the training: its epoch and learning rate.

    Raises:
        ValueError: If a rank has finished its training and another has not, or if epochs or rates differ. Raised on all
            ranks.
        HorovodInternalError: If a rank was lost.
    """
    where = "has ended its training after" if place.ended else "begins"
    notice = (
        f"rank {state.require_job().rank} {where} epoch {place.epoch + 1} and waits for ranks that have not reached it"
    )
    compare_places(_waiting(frontend, "fit.begin_of_epoch", place, notice))


def compare_places(from_all: Sequence[Position]) -> None:
    """Raise ValueError unless all ranks are at the same position in the training. ``from_all`` is in rank order."""
    ended = [rank for rank, place in enumerate(from_all) if place.ended]
    going = [rank for rank, place in enumerate(from_all) if not place.ended]
    if ended and going:
        raise ValueError(
            f"fit: rank {ended[0]} has ended its training after epoch {from_all[ended[0]].epoch + 1}, but rank "
            f"{going[0]} begins epoch {from_all[going[0]].epoch + 1}. Either epochs of fit differ, or a "
            f"callback that stops training, such as EarlyStopping, has stopped only rank {ended[0]}: {_SAME_CALLBACKS}"
        )
    for rank in going:
        first, other = from_all[going[0]], from_all[rank]
        if other.epoch != first.epoch:
            raise ValueError(
                f"fit: rank {going[0]} is in epoch {first.epoch + 1}, but rank {rank} in epoch {other.epoch + 1}; all "
                "ranks must begin in the same epoch, for example with fit(initial_epoch=hvd.broadcast(epoch, 0))"
            )
        if not _alike(first.rate, other.rate):
            raise ValueError(
                f"fit: the learning rate of epoch {first.epoch + 1} is {first.rate:g} on rank {going[0]}, but "
                f"{other.rate:g} on rank {rank}, so that their weights would drift apart. A callback that changes it, "
                f"such as ReduceLROnPlateau or LearningRateScheduler, has not done the same on both: {_SAME_CALLBACKS}"
            )


def _alike(rate: float | None, other: float | None) -> bool:
    if rate is None or other is None or (math.isnan(rate) and math.isnan(other)):
        return True
    # Allow a small difference, because devices can round scheduled learning rates differently.
    return math.isclose(rate, other, rel_tol=1e-5)


def check_epoch(frontend: Any, epoch: int, batches: int, samples: float | None = None, stopped: bool = False) -> None:
    """Check at the end of an epoch that all ranks have processed the same number of batches.

    All ranks must call this. If only the numbers of samples differ, rank 0 warns that averages still count every rank
    equally. If a rank does not reach the end of its epoch, this rank logs a warning after the stall warning time. If
    the wait then ends with a HorovodInternalError, the error contains the same text.

    Args:
        frontend: ``api.Frontend`` of this process.
        epoch: Number of the epoch, from 0.
        batches: Number of batches on this rank.
        samples: Number of samples on this rank, or None if unknown or if the optimizer weights its averages.
        stopped: True if a callback has stopped this rank's training.

    Raises:
        ValueError: If the numbers differ. Raised on all ranks.
    """
    advice = _ADVICE
    if stopped:
        advice = f"a callback that stops training, such as TerminateOnNaN, has stopped this rank: {_SAME_CALLBACKS}"
    notice = (
        f"rank {state.require_job().rank} has ended epoch {epoch + 1} after {batches} batches and waits for ranks that "
        f"have more of them; {advice}"
    )
    from_all = _waiting(frontend, "fit.end_of_epoch", (batches, samples), notice)
    counts = [count for count, _ in from_all]
    _compare(counts, counts, f"in epoch {epoch + 1}")
    seen = [number for _, number in from_all]
    if None not in seen and len(set(seen)) > 1 and state.require_job().rank == 0:
        most, least = max(seen), min(seen)
        warn_user(
            f"fit: in epoch {epoch + 1} rank {seen.index(most)} has read {most:.0f} samples in {batches} batches, but "
            f"rank {seen.index(least)} {least:.0f}: averages of gradients count each rank alike, not each sample. Pass "
            'weight="batch" to hvd.DistributedOptimizer on all ranks'
        )


def _waiting(frontend: Any, name: str, own: Any, notice: str) -> list[Any]:
    """Gather ``own`` from all ranks, and log a warning if the wait is long.

    After the stall warning time, ``notice`` is logged as a warning. If an error ends the wait, ``notice`` begins the
    error's message.

    Raises:
        HorovodInternalError: If a rank is lost during the wait.
    """
    timer = _warning(f"fit: {notice}")
    try:
        return allgather_object(own, name, global_process_set, frontend.adapter.frontend)
    except HorovodInternalError as error:
        raise HorovodInternalError(f"fit: {notice}. The wait ended with: {error}") from error
    finally:
        if timer is not None:
            timer.cancel()


def _warning(text: str) -> threading.Timer | None:
    """Start a timer that logs a warning after the stall warning time, unless it is canceled first."""
    settings = Settings.from_environ()
    seconds = settings.number("HOROVOD_STALL_CHECK_TIME_SECONDS")
    if settings.flag("HOROVOD_STALL_CHECK_DISABLE") or seconds == 0 or settings.integer("HOROVOD_DEBUG_RANK") >= 0:
        return None
    sink: Callable[..., Any] = log.make_sink(state.require_job().rank, settings.flag("HOROVOD_LOG_HIDE_TIME"))
    timer = threading.Timer(seconds, sink, [LOG_LEVELS.index("warning"), text])
    timer.daemon = True
    timer.start()
    return timer


def _compare(counts: Sequence[int], from_all: Sequence[int | None], when: str) -> None:
    if len(set(counts)) > 1:
        most, least = max(counts), min(counts)
        raise ValueError(
            f"fit: rank {from_all.index(most)} has more batches {when} than rank {from_all.index(least)}: {most} and "
            f"{least}; {_ADVICE}"
        )


# -- what can be noticed when training begins -----------------------------------------------------------------------

_watched: set[type] = set()


def watch(keras: Any) -> None:
    """Patch ``fit`` to require ``hvd.init()`` in multi-rank jobs, and to warn about ``synchronized=True``.

    The warning is for models with a distributed optimizer on TensorFlow: Keras synchronizes ``BatchNormalization`` only
    between replicas of ``tf.distribute``. Other backends reject the argument.
    """
    for kind in keras.Model.__mro__:
        if "make_train_function" in vars(kind):
            if kind not in _watched:
                _watched.add(kind)
                kind.make_train_function = _with_checks(kind.make_train_function)
            return


def _with_checks(make: Any) -> Any:
    @functools.wraps(make)
    def make_train_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        check_launch(f"Call hvd.init() first, and {_WRAP}")
        if getattr(self, "train_function", None) is None and _is_distributed(getattr(self, "optimizer", None)):
            names = [str(layer.name) for layer in self._flatten_layers() if getattr(layer, "synchronized", False)]
            if names:
                warn_user(
                    f"the layers {', '.join(names)} have synchronized=True, which Keras supports only with "
                    "tf.distribute: each rank normalizes with the statistics of its batch alone. Use "
                    "horovod.tensorflow.SyncBatchNormalization for the statistics of all ranks"
                )
        return make(self, *args, **kwargs)

    return make_train_function


def _is_distributed(optimizer: Any) -> bool:
    plain = getattr(optimizer, "inner_optimizer", optimizer)
    controls = [getattr(one, "_hvd", None) for one in (optimizer, plain)]
    return state.job is not None and any(one is not None and one.reduction.active() for one in controls)


# -- optimizers that are not distributed -----------------------------------------------------------------------------

_WRAP = "compile the model with hvd.DistributedOptimizer(optimizer)"


def after_batch(model: Any) -> None:
    """Count a step of an optimizer that is not distributed, so that a warning can be issued if there are many."""
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if training.watched and optimizer is not None and not (hasattr(optimizer, "_hvd") or hasattr(inner, "_hvd")):
        # Assume two bytes per number, because a program that averages gradients itself may send half precision.
        training.plain_step(lambda: 2 * sum(math.prod(v.shape) for v in model.trainable_variables), _WRAP)
