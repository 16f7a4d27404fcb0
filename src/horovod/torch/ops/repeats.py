"""Reuse of the engine's Work for operations that repeat in every training step.

Training submits the same tensors in every step. Each call is compared with the last call of the same name: shape,
dtype, op, scale factors and process set. If they are equal, the same Work is submitted again. This skips all checks and
creates no object in Python or in the engine. The functions are native (``Repeats`` in ``_core.pyi``), because Python
would take several times as long for the comparison.

A Repeat that is taken belongs to one operation until that operation has succeeded. Therefore two operations in flight
never share a Repeat, and the Repeat of a failed or abandoned operation is not reused.
"""

import itertools
from collections.abc import Callable
from typing import Any

import torch

from horovod import _core
from horovod.common.frontends import TORCH as frontend
from horovod.common.process_sets import global_process_set
from horovod.torch.ops.tracing import state as _profiler

Repeat = _core.Repeat

# Maximum number of stored names. Beyond it, the oldest name is dropped. Most models have fewer parameters, so mainly
# programs that use new names in every step exceed it.
_LIMIT = 8192

# Reusable operations, keyed by name. Operations in flight stay in the dict; native code marks them as busy.
idle: dict[Any, Repeat] = {}

# State of ``handles.py``: operations in flight, keyed by handle; the iterator of new handles; tensors of interrupted
# operations; functions to call before the next wait.
records: dict[int, Any] = {}
numbers = itertools.count()
retained: list[Any] = []
before_wait: list[Callable[[], None]] = []

_types = (torch.Tensor, torch.nn.Parameter, torch.empty_like)
_repeats = _core.Repeats(
    frontend, idle, records, numbers, *_types, global_process_set, _LIMIT, retained.append, before_wait, _profiler
)
create = _repeats.create
take = _repeats.take
submit = _repeats.submit
run = _repeats.run
run_first = _repeats.run_first
start_first = _repeats.start_first
finish_first = _repeats.finish_first
settle = _repeats.settle
put_back = _repeats.put_back
