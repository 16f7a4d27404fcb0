"""Reuse of the engine's Work for operations that are submitted again in every step.

Training submits the same tensors in every step. Each call is compared with the last call of the same name: shape,
dtype, op, scale factors and process set. If they are equal, the same Work is submitted again. This skips all checks and
creates no object in Python or in the engine.

A Repeat taken out of ``idle`` belongs to one operation, and is put back when that operation has succeeded. So two
operations in flight never share a Repeat, and the Repeat of a failed or abandoned operation is not reused.
"""

import contextlib
from typing import Any

import torch

from horovod.common.frontends import TORCH as face
from horovod.common.process_sets import ProcessSet

# Maximum number of names kept; the least recently used is dropped. It limits memory in programs that never reuse a
# name, and is larger than the number of parameters of most models.
_LIMIT = 8192

_NONE: Any = object()


class Repeat:
    """A Work and the arguments that it was submitted with."""

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
        """Store a Work and the arguments of its submission.

        ``name`` and ``op`` are the values that the user passed. ``name`` can also be a tuple, which is used for
        internal operations. ``source`` and ``result`` hold the tensors while the operation is in flight.
        """
        self.work = work
        self.engine = face.engine if source.is_cpu else _NONE  # work on devices is never submitted again
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
    """Remove and return the idle Repeat of this name. Return None if there is none, or if an argument has changed.

    Never raises an exception. Invalid arguments return None, and the checks of a first submission report them.
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
    """Make a Repeat whose operation has succeeded available to the next operation of the same name."""
    repeat.source = repeat.result = None
    idle[repeat.name] = repeat
    if repeat.engine is not face.engine:
        idle.pop(repeat.name, None)  # check after insertion: shutdown in another thread first resets the engine
    if len(idle) > _LIMIT:
        _evict()


def _evict() -> None:
    with contextlib.suppress(RuntimeError):  # another thread is changing the dict, and will evict an entry itself
        idle.pop(next(iter(idle), None), None)
