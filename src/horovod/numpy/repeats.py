"""Reuse of the engine's Work objects for blocking allreduces that repeat.

``horovod.torch.ops.repeats`` describes how it works.
"""

from typing import Any

import numpy as np

from horovod import _core
from horovod._arrays import handles
from horovod.common.frontends import NUMPY as frontend
from horovod.common.process_sets import ProcessSet, global_process_set

# Maximum number of names for which a call is stored.
_LIMIT = 8192

# Last successful call for each name.
_idle: dict[Any, _core.Repeat] = {}

_types = (np.ndarray, np.ndarray, np.empty_like)
_repeats = _core.Repeats(frontend, _idle, {}, iter(()), *_types, global_process_set, _LIMIT, handles.hold, [], None)
run, run_first = _repeats.run, _repeats.run_first


def remember(
    work: Any, name: str | None, source: Any, op: Any, prescale: Any, postscale: Any, process_set: ProcessSet
) -> None:
    """Keep the Work object of a successful allreduce, so that the next call with the same name can reuse it."""
    if type(source) is np.ndarray and source.flags.carray and source.dtype.isbuiltin == 1:
        _repeats.put_back(_repeats.create(work, name, source, op, prescale, postscale, process_set))


def forget() -> None:
    """Drop all stored Works after a shutdown, because each keeps its engine alive."""
    _idle.clear()
