"""Reuses the engine's Work object if a blocking allreduce is called repeatedly with the same arguments."""

from typing import Any

import numpy as np

from horovod import _core
from horovod._arrays import handles
from horovod.common.exceptions import HorovodInternalError
from horovod.common.frontends import NUMPY as frontend
from horovod.common.process_sets import ProcessSet

# Maximum number of names for which a call is stored.
_LIMIT = 8192

# Last successful call for each name: Work, dtype, shape, reduction and process set.
_idle: dict[str | None, tuple[Any, ...]] = {}


def run_again(
    name: str | None, source: Any, op: Any, prescale: Any, postscale: Any, process_set: ProcessSet, in_place: bool
) -> Any:
    """Repeat the last allreduce with this name and return its result.

    Returns:
        ``source`` or a new array. None if there is no such allreduce or an argument has changed. The caller must then
        check the arguments and submit a new operation.

    Raises:
        ValueError: If the engine rejects the operation.
        HorovodInternalError: If the operation failed.
    """
    if type(source) is not np.ndarray or not isinstance(name, str | None):
        return None
    last = _idle.pop(name, None)
    if last is None:
        return None
    work, engine, dtype, shape, last_op, last_prescale, last_postscale, last_set, number = last
    if (
        source.dtype is not dtype
        or source.shape != shape
        or not source.flags.carray
        or op is not last_op
        or prescale is not last_prescale
        or postscale is not last_postscale
        or process_set is not last_set
        or process_set.process_set_id != number
        or engine is not frontend.engine
    ):
        return None
    target = source if in_place else np.empty_like(source)
    try:
        pointer = _core.address_of(source)
        work.run_again(pointer, pointer if in_place else _core.address_of(target))
    except (ValueError, HorovodInternalError):
        # The operation has failed, so the engine no longer uses the arrays.
        raise
    except BaseException:
        # Keep the arrays alive, because Ctrl-C has ended the wait while the engine is still using them.
        handles.hold((source, target))
        raise
    _keep(name, last)
    return target


def remember(
    work: Any, name: str | None, source: Any, op: Any, prescale: Any, postscale: Any, process_set: ProcessSet
) -> None:
    """Keep the Work object of a successful allreduce, so that the next call with the same name can reuse it."""
    if type(source) is np.ndarray and source.flags.carray and source.dtype.isbuiltin == 1:
        arguments = (source.dtype, source.shape, op, prescale, postscale, process_set, process_set.process_set_id)
        _keep(name, (work, frontend.engine, *arguments))


def _keep(name: str | None, entry: tuple[Any, ...]) -> None:
    if len(_idle) < _LIMIT:
        _idle[name] = entry
    if entry[1] is not frontend.engine:
        # Meanwhile, another thread may have called shutdown(), which resets the engine before it clears this table.
        forget()


def forget() -> None:
    """Drop all stored Works, because each keeps its engine alive.

    Call this after the frontend has shut down.
    """
    _idle.clear()
