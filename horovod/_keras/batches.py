"""Messages between ranks in ``fit`` before they wait for gradients that never come, or drift apart unnoticed.

Before the first epoch: how many batches an epoch has. At the beginning of each epoch: which one it is, the learning
rate, and whether a rank has ended its training. At the end of each epoch: how many batches it had.
"""

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from horovod.common.contract import log
from horovod.common.contract.settings import LOG_LEVELS, Settings
from horovod.common.exceptions import HorovodInternalError
from horovod.common.objects import allgather_object
from horovod.common.process_sets import global_process_set
from horovod.common.state import state

_ADVICE = "give all ranks equally many, for example with dataset.take(n) or fit(steps_per_epoch=n)"
_SAME_CALLBACKS = "give it to all ranks, after MetricAverageCallback, so that all ranks decide alike"


class Place(NamedTuple):
    """Where a rank is in ``fit``."""

    epoch: int
    """From 0; the one that begins, or that was the last one."""
    ended: bool
    """True if this rank's training has ended after that epoch."""
    rate: float | None
    """The learning rate, None if it is unknown."""


def concerns(model: Any) -> bool:
    """Do all ranks of the job reduce gradients in this model's ``fit``?"""
    control = getattr(getattr(model, "optimizer", None), "_hvd", None)
    return control is not None and control.reduction.process_set is global_process_set and state.require_job().size > 1


def check_plan(face: Any, steps: int | None) -> None:
    """Before the first epoch, on all ranks. ``steps``: batches of an epoch, None where that is not known. ValueError on
    all ranks where they differ."""
    everybody = allgather_object(steps, "fit.steps", global_process_set, face.adapter.face)
    _compare([count for count in everybody if count is not None], everybody, "in an epoch")


def all_built(face: Any, shapes: list[str] | None) -> bool:
    """Return True if the variables to broadcast exist on all ranks; all ranks call it.

    Args:
        face: An ``api.Face``.
        shapes: ``Face.shared_shapes`` of this rank.

    Raises:
        ValueError: On all ranks, if ranks have different variables.
    """
    everybody = allgather_object(shapes, "fit.variables", global_process_set, face.adapter.face)
    if any(one is None for one in everybody):
        return False
    for rank, theirs in enumerate(everybody):
        if theirs != everybody[0]:
            first = next((i for i, (a, b) in enumerate(zip(everybody[0], theirs, strict=False)) if a != b), None)
            differ = (
                f"{len(everybody[0])} and {len(theirs)} variables"
                if first is None
                else f"variable {first} is {everybody[0][first]} and {theirs[first]}"
            )
            raise ValueError(
                f"fit: model and optimizer of rank 0 and rank {rank} differ: {differ}; all ranks must build the same "
                "model and compile it with the same kind of optimizer"
            )
    return True


def check_place(face: Any, place: Place) -> None:
    """Compare epochs and learning rates of all ranks at the beginning of an epoch and at the end of training.

    Args:
        face: An ``api.Face``.
        place: Where this rank is.

    Raises:
        ValueError: On all ranks, if a rank has ended its training and another has not, or if epochs or rates differ.
        HorovodInternalError: If a rank was lost.
    """
    where = "has ended its training after" if place.ended else "begins"
    told = f"rank {state.require_job().rank} {where} epoch {place.epoch + 1} and waits for ranks that do not come to it"
    compare_places(_waiting(face, "fit.begin_of_epoch", place, told))


def compare_places(everybody: Sequence[Place]) -> None:
    """Raise ValueError if the places of ranks, in the order of ranks, do not fit each other."""
    ended = [rank for rank, place in enumerate(everybody) if place.ended]
    going = [rank for rank, place in enumerate(everybody) if not place.ended]
    if ended and going:
        raise ValueError(
            f"fit: rank {ended[0]} has ended its training after epoch {everybody[ended[0]].epoch + 1}, but rank "
            f"{going[0]} begins epoch {everybody[going[0]].epoch + 1}. Either fit got other epochs there, or a "
            f"callback that stops training, such as EarlyStopping, has stopped rank {ended[0]} alone: {_SAME_CALLBACKS}"
        )
    for rank in going:
        first, other = everybody[going[0]], everybody[rank]
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
    return math.isclose(rate, other, rel_tol=1e-5)  # schedules compute them, perhaps on devices that round differently


def check_epoch(face: Any, epoch: int, batches: int, stopped: bool = False) -> None:
    """At the end of an epoch, on all ranks. ``epoch``: from 0. ``batches``: that this rank had. ``stopped``: True if a
    callback has stopped this rank's training.

    ValueError on all ranks where they differ; where others do not come to the end of theirs, a warning after the time
    of stall warnings, and the same sentence in the HorovodInternalError that ends the wait.
    """
    advice = _ADVICE
    if stopped:
        advice = f"a callback that stops training, such as TerminateOnNaN, has stopped this rank: {_SAME_CALLBACKS}"
    told = (
        f"rank {state.require_job().rank} has ended epoch {epoch + 1} after {batches} batches and waits for ranks that "
        f"have more of them; {advice}"
    )
    everybody = _waiting(face, "fit.end_of_epoch", batches, told)
    _compare(everybody, everybody, f"in epoch {epoch + 1}")


def _waiting(face: Any, name: str, mine: Any, told: str) -> list[Any]:
    """Return what all ranks give; ``told`` is logged if that takes long, and is part of the error that ends it."""
    timer = _warning(f"fit: {told}")
    try:
        return allgather_object(mine, name, global_process_set, face.adapter.face)
    except HorovodInternalError as error:
        raise HorovodInternalError(f"fit: {told}. What ended the wait: {error}") from error
    finally:
        if timer is not None:
            timer.cancel()


def _warning(text: str) -> threading.Timer | None:
    """Says so when as much time has passed as until a stall warning, unless cancelled."""
    settings = Settings.from_environ()
    seconds = settings.number("HOROVOD_STALL_CHECK_TIME_SECONDS")
    if settings.flag("HOROVOD_STALL_CHECK_DISABLE") or seconds == 0 or settings.integer("HOROVOD_DEBUG_RANK") >= 0:
        return None
    sink: Callable[..., Any] = log.make_sink(state.require_job().rank, settings.flag("HOROVOD_LOG_HIDE_TIME"))
    timer = threading.Timer(seconds, sink, [LOG_LEVELS.index("warning"), text])
    timer.daemon = True
    timer.start()
    return timer


def _compare(known: Sequence[int], everybody: Sequence[int | None], when: str) -> None:
    if len(set(known)) > 1:
        most, least = max(known), min(known)
        raise ValueError(
            f"fit: rank {everybody.index(most)} has more batches {when} than rank {everybody.index(least)}: {most} and "
            f"{least}; {_ADVICE}"
        )
