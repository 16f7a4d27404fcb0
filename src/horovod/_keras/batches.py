"""Checks between ranks in ``fit``, so that they do not wait for gradients that never arrive, or silently diverge.

Before the first epoch, ranks compare the number of batches per epoch. At the beginning of each epoch they compare its
number, the learning rate, and whether a rank has ended its training. At the end of each epoch they compare the number
of batches that it had.
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
    """Position of a rank in ``fit``."""

    epoch: int
    """Epoch that begins, or the last one if training has ended; from 0."""
    ended: bool
    """True if this rank's training has ended after that epoch."""
    rate: float | None
    """Learning rate, or None if it is unknown."""


def concerns(model: Any) -> bool:
    """Return True if all ranks of the job reduce gradients in this model's ``fit``."""
    control = getattr(getattr(model, "optimizer", None), "_hvd", None)
    return control is not None and control.reduction.process_set is global_process_set and state.require_job().size > 1


def check_plan(face: Any, steps: int | None) -> None:
    """Compare the number of batches before the first epoch. All ranks call it.

    ``steps`` is the number of batches per epoch, or None if unknown.

    Raises:
        ValueError: The numbers differ. Raised on all ranks.
    """
    everybody = allgather_object(steps, "fit.steps", global_process_set, face.adapter.face)
    _compare([count for count in everybody if count is not None], everybody, "in an epoch")


def all_built(face: Any, shapes: list[str] | None) -> bool:
    """Return True if the variables to broadcast exist on all ranks. All ranks call it.

    Args:
        face: An ``api.Face``.
        shapes: ``Face.shared_shapes`` of this rank.

    Raises:
        ValueError: Ranks have different variables. Raised on all ranks.
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
        place: Position of this rank.

    Raises:
        ValueError: A rank has ended its training and another has not, or epochs or rates differ. Raised on all ranks.
        HorovodInternalError: A rank was lost.
    """
    where = "has ended its training after" if place.ended else "begins"
    told = f"rank {state.require_job().rank} {where} epoch {place.epoch + 1} and waits for ranks that do not come to it"
    compare_places(_waiting(face, "fit.begin_of_epoch", place, told))


def compare_places(everybody: Sequence[Place]) -> None:
    """Raise ValueError if the positions of the ranks, in rank order, do not match."""
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
    return math.isclose(rate, other, rel_tol=1e-5)  # schedules may compute rates on devices that round differently


def check_epoch(face: Any, epoch: int, batches: int, stopped: bool = False) -> None:
    """Compare the number of batches at the end of an epoch. All ranks call it.

    If other ranks do not reach the end of their epoch, this logs a warning after the stall warning time. The
    HorovodInternalError that ends the wait contains the same text.

    Args:
        face: An ``api.Face``.
        epoch: Number of the epoch, from 0.
        batches: Number of batches on this rank.
        stopped: True if a callback has stopped this rank's training.

    Raises:
        ValueError: The numbers differ. Raised on all ranks.
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
    """Gather ``mine`` of all ranks; log ``told`` if that takes long, and add it to the error if the wait fails."""
    timer = _warning(f"fit: {told}")
    try:
        return allgather_object(mine, name, global_process_set, face.adapter.face)
    except HorovodInternalError as error:
        raise HorovodInternalError(f"fit: {told}. What ended the wait: {error}") from error
    finally:
        if timer is not None:
            timer.cancel()


def _warning(text: str) -> threading.Timer | None:
    """Start a timer that logs a warning after the stall warning time, unless it is cancelled."""
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
