"""Building blocks of process groups: process sets, frontend numbers, reductions and messages.

Only the members of a group create its process set. The frontend number keeps the operations of different groups apart.
Reductions follow c10d's semantics, and messages are point-to-point.
"""

import hashlib
import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.distributed import ReduceOp

from horovod._core import KIND_BROADCAST
from horovod.common.exceptions import HorovodInternalError
from horovod.common.frontends import state
from horovod.common.ops import Average, Max, Min, Product, Sum
from horovod.common.process_sets import find, register_as
from horovod.torch.distributed import engine
from horovod.torch.distributed.engine import Flat
from horovod.torch.distributed.work import watch
from horovod.torch.ops.tensors import CODES

FIRST, LAST = 6, 252
"""First and last frontend number of process groups. Lower numbers are defined in ``horovod.common.frontends``."""

UPWARDS, DOWNWARDS = 253, 254
"""Frontend numbers of messages to higher ranks and to lower ranks."""


class MemberSet:
    """Process set that comes into existence once all its members have requested it.

    Actions that need the process set are deferred until it exists.
    """

    def __init__(self, ranks: Sequence[int], engine: Any) -> None:
        """Request the process set from the engine, unless a set with the same ranks exists."""
        self.ranks = list(ranks)
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[int | None, Exception | None], None]] = []
        self._number = 0 if len(ranks) == state.require_job().size else find(self.ranks)
        self._error: Exception | None = None
        self._adding: Any = None
        if self._number is None:
            text = ",".join(map(str, ranks))
            name = text if len(text) < 64 else hashlib.sha256(text.encode()).hexdigest()
            self._adding = engine.add_process_set(self.ranks, f"members.{name}")

    @property
    def number(self) -> int:
        """Id of the process set, which must already exist. If its creation failed, the error is raised."""
        if self._error is not None:
            raise self._error
        assert self._number is not None
        return self._number

    def done(self) -> bool:
        """Return True if the process set has been created or its creation has failed. Never blocks."""
        return self.wait(0.0)

    def wait(self, timeout: float = -1.0) -> bool:
        """Wait until the process set exists, then run the deferred actions.

        Returns:
            False if the process set does not exist after ``timeout`` seconds.
        """
        adding = self._adding
        if adding is None:
            return True
        error: Exception | None = None
        try:
            if not adding.wait(timeout):
                return False
        except (ValueError, HorovodInternalError) as why:
            error = why
        with self._lock:
            if self._adding is not None:
                self._error = error
                if error is None:
                    self._number = register_as(self.ranks, adding.sizes[0])
                self._adding = None
                for action in self._callbacks:
                    action(self._number, error)
                self._callbacks.clear()
        return True

    poll = wait

    def then(self, action: Callable[[int | None, Exception | None], None]) -> None:
        """Call ``action(id, None)`` once the process set exists, or ``action(None, error)`` if its creation failed."""
        with self._lock:
            if self._adding is None:
                action(self._number, self._error)
                return
            self._callbacks.append(action)
            first = len(self._callbacks) == 1
        if first:
            watch(self)


class Members:
    """Process sets and frontend numbers used by one engine."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self._lock = threading.Lock()
        self._sets: dict[tuple[int, ...], MemberSet] = {}
        self._numbers: defaultdict[tuple[int, ...], Any] = defaultdict(lambda: itertools.count(FIRST))

    def set_of(self, ranks: Sequence[int]) -> MemberSet:
        """Return the process set for ``ranks``, in ascending order. Request it from the engine if necessary."""
        key = tuple(ranks)
        with self._lock:
            if key not in self._sets:
                self._sets[key] = MemberSet(ranks, self.engine)
            return self._sets[key]

    def next_number(self, ranks: Sequence[int]) -> int:
        """Return the next free frontend number for a process group of ``ranks``.

        Raises:
            ValueError: If too many process groups were created for these ranks.
        """
        number = int(next(self._numbers[tuple(ranks)]))
        if number > LAST:
            raise ValueError(f"at most {LAST - FIRST + 1} process groups of the same ranks can be created in a job")
        return number

    def submitters(self, number: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return ``Engine.submit`` and ``Engine.run``, bound to the given frontend number."""
        return partial(self.engine.submit, frontend=number), partial(self.engine.run, frontend=number)


_current: list[Members] = []


def current() -> Members:
    """Return the process sets and frontend numbers of the current engine."""
    engine = state.require_engine()
    if not _current or _current[0].engine is not engine:
        _current[:] = [Members(engine)]
    return _current[0]


def forget() -> None:
    """Drop the reference to the engine. Call this after Horovod has shut down in this process."""
    _current.clear()


# Mapping of c10d reductions to engine reductions. Reductions that the engine lacks are computed locally.

_ENGINE = {"SUM": Sum, "AVG": Average, "MIN": Min, "MAX": Max, "PRODUCT": Product, "PREMUL_SUM": Sum}
_LOCAL: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PREMUL_SUM": torch.add,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "PRODUCT": torch.mul,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
_LINEAR = ("SUM", "AVG", "PREMUL_SUM")


class Reduction(NamedTuple):
    """Implementation of a c10d reduction for tensors of one dtype.

    Attributes:
        name: Name in c10d, such as "SUM".
        code: The engine's code for the reduction, or None if ``fold`` computes it.
        factor: Number or tensor by which the input is multiplied before the reduction, or None.
    """

    name: str
    code: int | None
    factor: Any = None


def reduction_of(op: Any, dtype: torch.dtype, scatters: bool = False) -> Reduction:
    """Return the Reduction for a c10d reduce op and a dtype.

    Args:
        op: c10d's ReduceOp, or a member of its enumeration.
        dtype: Dtype of the tensors.
        scatters: True for a reduce_scatter, for which the engine supports only sums and averages.

    Raises:
        ValueError: If the reduction is unknown or not defined for the dtype.
    """
    kind = getattr(op, "op", op)
    name = getattr(kind, "name", str(kind))
    if name not in _LOCAL:
        raise ValueError(f"ReduceOp must be one of {', '.join(_LOCAL)}, got {name}")
    what = str(dtype).removeprefix("torch.")
    integral = not (dtype.is_floating_point or dtype.is_complex)
    if dtype.is_complex and name not in _LINEAR:
        raise ValueError(f"ReduceOp must be SUM, AVG or PREMUL_SUM for {what} tensors, got {name}")
    if integral and name in ("AVG", "PREMUL_SUM"):
        raise ValueError(f"ReduceOp {name} needs floating-point or complex tensors, got {what}; use SUM and divide")
    if name.startswith("B") and not integral:
        raise ValueError(f"ReduceOp {name} needs integer or bool tensors, got {what}")
    if not dtype.is_complex and dtype not in CODES:
        raise ValueError(f"reductions accept {', '.join(str(one)[6:] for one in CODES)} and complex, got {what}")
    factor = op.__getstate__()[1] if name == "PREMUL_SUM" and isinstance(op, ReduceOp) else None
    if name == "PREMUL_SUM" and factor is None:
        raise ValueError("ReduceOp PREMUL_SUM must have a factor, got none")
    by_engine = name in _ENGINE and not (scatters and (name not in _LINEAR or dtype is torch.bool))
    if scatters and dtype is torch.bool and name == "SUM":
        return Reduction("BOR", None)
    return Reduction(name, _ENGINE[name] if by_engine else None, factor)


def fold(reduction: Reduction, parts: list[torch.Tensor]) -> torch.Tensor:
    """Reduce the parts received from all ranks, in rank order.

    16-bit floats are accumulated in float32.

    Returns:
        The reduced tensor.
    """
    combine, dtype = _LOCAL[reduction.name], parts[0].dtype
    short = dtype in (torch.float16, torch.bfloat16)
    total = parts[0].float() if short else parts[0].clone()
    for part in parts[1:]:
        total = combine(total, part.float() if short else part)
    return total.to(dtype)


# Point-to-point messages. Each message is a broadcast within a two-rank process set, created on first use.


class Message:
    """Work of a point-to-point message.

    It has the methods ``wait`` and ``done`` of the engine's Work. Creating it never blocks.
    """

    def __init__(self, pair: MemberSet, submitter: Callable[..., Any], values: Flat, root: int, name: str) -> None:
        """Submit the message once both ranks have requested the process set.

        Args:
            pair: Process set of the two ranks.
            submitter: ``Engine.submit`` with the number of a frontend.
            values: Tensor to send, or tensor that receives the message.
            root: Rank of the sender in the job.
            name: Name of the operation; equal on both ranks.
        """
        self._pair, self._submitter, self._values, self._root, self._name = pair, submitter, values, root, name
        self._work: Any = None
        self._error: Exception | None = None
        pair.then(self._start)

    def _start(self, number: int | None, error: Exception | None) -> None:
        self._error = error
        if number is None:
            return
        values = self._values
        try:
            self._work = engine.submit(
                self._submitter, KIND_BROADCAST, values, values, number, root=self._root, name=self._name
            )
        except (ValueError, HorovodInternalError) as why:
            self._error = why

    def wait(self, timeout: float = -1.0) -> bool:
        """Wait for the message. Return False if the timeout expires first."""
        deadline = time.monotonic() + timeout
        if not self._pair.wait(timeout):
            return False
        if self._error is not None:
            raise self._error
        return bool(self._work.wait(max(0.0, deadline - time.monotonic()) if timeout >= 0 else timeout))

    def done(self) -> bool:
        """Return True if the message has completed or failed."""
        return self._pair.done() and (self._error is not None or self._work.done())
