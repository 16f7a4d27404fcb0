"""Reuse of the engine's Work for operations that repeat in every training step.

Training submits the same tensors in every step. Each call is compared with the last call of the same name: shape,
dtype, op, scale factors and process set. If they are equal, the same Work is submitted again. This skips all checks and
creates no object in Python or in the engine.

A Repeat that is taken out of ``idle`` belongs to one operation until that operation has succeeded. Therefore two
operations in flight never share a Repeat, and the Repeat of a failed or abandoned operation is not reused.
"""

import contextlib
from typing import Any

import torch

from horovod.common.frontends import TORCH as face
from horovod.common.process_sets import ProcessSet

# Maximum number of stored names. Above it, the least recently used name is dropped. Only programs that never reuse a
# name reach this limit, because most models have fewer parameters.
_LIMIT = 8192

_NONE: Any = object()


class Repeat:
    """A Work object of the engine that can be submitted again, and the arguments of its first submission."""

    __slots__ = (
        "dtype",
        "engine",
        "name",
        "op",
        "postscale",
        "prescale",
        "process_set",
        "result",
        "set_id",
        "shape",
        "source",
        "work",
    )

    def __init__(
        self,
        work: Any,
        name: Any,
        source: torch.Tensor,
        op: int | None,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
    ) -> None:
        """Store a Work object and the arguments with which it was submitted.

        ``name`` and ``op`` are the user's arguments. For internal operations, ``name`` is a tuple. ``source`` and
        ``result`` refer to the tensors while the operation is in flight.
        """
        self.work = work
        # Do not store the engine for work on a device, so that such work is never resubmitted.
        self.engine = face.engine if source.is_cpu else _NONE
        self.name = name
        self.shape = source.shape
        self.dtype = source.dtype
        self.op = op
        self.prescale = prescale
        self.postscale = postscale
        self.process_set = process_set
        self.set_id = process_set.process_set_id
        self.source: Any = None
        self.result: Any = None


idle: dict[Any, Repeat] = {}


def take(
    name: Any,
    source: torch.Tensor,
    op: int | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Repeat | None:
    """Remove the Repeat that is stored for an operation from ``idle``, and return it.

    Return None if none is stored, or if an argument has changed since the previous submission. This function never
    raises an exception. If arguments are invalid, it returns None, and the caller's normal submission reports the
    error.
    """
    try:
        last = idle.pop(name, None)
        if (
            last is not None
            and source.shape == last.shape
            and source.dtype is last.dtype
            and op is last.op
            and source.is_contiguous()
            and source.is_cpu
            and not source.is_neg()
            and prescale == last.prescale
            and postscale == last.postscale
            and process_set is last.process_set
            and process_set.process_set_id == last.set_id
            and last.engine is face.engine
        ):
            return last
    except (AttributeError, RuntimeError, TypeError):
        pass
    return None


def put_back(repeat: Repeat) -> None:
    """Make an operation available for reuse after it has succeeded."""
    repeat.source = repeat.result = None
    idle[repeat.name] = repeat
    if repeat.engine is not face.engine:
        # Check only after inserting the entry: another thread can shut Horovod down meanwhile, which resets
        # `face.engine` before it clears the dict.
        idle.pop(repeat.name, None)
    if len(idle) > _LIMIT:
        _evict()


def _evict() -> None:
    # Ignore the error that is raised if another thread changes the dict at the same time. That thread evicts an entry
    # itself.
    with contextlib.suppress(RuntimeError):
        idle.pop(next(iter(idle), None), None)
