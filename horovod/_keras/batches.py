"""Do all ranks have as many batches? In ``fit`` a rank with more of them waits for gradients that never come, so this
is asked before it begins, and where nobody knows yet, at the end of each epoch."""

import threading
from collections.abc import Sequence
from typing import Any

from horovod.common.contract import log
from horovod.common.contract.settings import LOG_LEVELS, Settings
from horovod.common.exceptions import HorovodInternalError
from horovod.common.objects import allgather_object
from horovod.common.process_sets import global_process_set
from horovod.common.state import state

_ADVICE = "give all ranks equally many, for example with dataset.take(n) or fit(steps_per_epoch=n)"


def concerns(model: Any) -> bool:
    """Do all ranks of the job reduce gradients in this model's ``fit``?"""
    control = getattr(getattr(model, "optimizer", None), "_hvd", None)
    return control is not None and control.reduction.process_set is global_process_set and state.require_job().size > 1


def check_plan(face: Any, steps: int | None) -> None:
    """Before the first epoch, on all ranks. ``steps``: batches of an epoch, None where that is not known. ValueError on
    all ranks where they differ."""
    everybody = allgather_object(steps, "fit.steps", global_process_set, face.adapter.face)
    _compare([count for count in everybody if count is not None], everybody, "in an epoch")


def check_epoch(face: Any, epoch: int, batches: int) -> None:
    """At the end of an epoch, on all ranks. ``epoch``: from 0. ``batches``: that this rank had.

    ValueError on all ranks where they differ; where others do not come to the end of theirs, a warning after the time
    of stall warnings, and the same sentence in the HorovodInternalError that ends the wait.
    """
    told = (
        f"rank {state.require_job().rank} has ended epoch {epoch + 1} after {batches} batches and waits for ranks that "
        f"have more of them; {_ADVICE}"
    )
    timer = _warning(f"fit: {told}")
    try:
        everybody = allgather_object(batches, "fit.end_of_epoch", global_process_set, face.adapter.face)
    except HorovodInternalError as error:
        raise HorovodInternalError(f"fit: {told}. What ended the wait: {error}") from error
    finally:
        if timer is not None:
            timer.cancel()
    _compare(everybody, everybody, f"in epoch {epoch + 1}")


def _warning(text: str) -> threading.Timer | None:
    """Says so when as much time has passed as until a stall warning, unless cancelled."""
    settings = Settings.from_environ()
    seconds = settings.number("HOROVOD_STALL_CHECK_TIME_SECONDS")
    if settings.flag("HOROVOD_STALL_CHECK_DISABLE") or seconds == 0 or settings.integer("HOROVOD_DEBUG_RANK") >= 0:
        return None
    sink = log.make_sink(state.require_job().rank, settings.flag("HOROVOD_LOG_HIDE_TIME"))
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
