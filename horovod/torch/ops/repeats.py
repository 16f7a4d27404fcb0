"""Operations that come again.

Training submits the same tensors step after step. What identifies a call (name, shape, dtype, op, scale factors,
process set) is compared with the last one of that name; if nothing has changed, its Work is submitted again, which
skips every check that had the same outcome before and makes no new object on either side.

A Repeat belongs to one operation from the moment it is taken out of ``idle`` until it is put back, when that one has
completed; so two operations under way never share one, and one that failed or that nobody waited for is not used again.
"""

import contextlib
from typing import Any

import torch

from horovod.common.faces import TORCH as face
from horovod.common.process_sets import ProcessSet

# Names that are kept; the one unused for longest makes room. More than any model has parameters, and a bound for
# programs that never use a name twice.
_LIMIT = 8192

_NONE: Any = object()


class Repeat:
    """A Work and what it was submitted for."""

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
        """``name``, ``op``: as the user gave them, or a name that no user can give. The operation's tensors are kept in
        ``source`` and ``result``.
        """
        self.work = work
        self.engine = face.engine if source.is_cpu else _NONE  # on devices nothing is submitted again
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
    """The idle Repeat of this name if all arguments are what they were and the tensor can travel, else None.

    Never raises: what is wrong with the arguments is said by the checks of a first call.
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
    """Its operation has completed well; the next one of this name may use it."""
    repeat.source = repeat.result = None
    idle[repeat.name] = repeat
    if repeat.engine is not face.engine:
        idle.pop(repeat.name, None)  # looked at only now: a shutdown in another thread clears idle after the engine
    if len(idle) > _LIMIT:
        _make_room()


def _make_room() -> None:
    with contextlib.suppress(RuntimeError):  # another thread changes it at this moment, and makes room itself
        idle.pop(next(iter(idle), None), None)
