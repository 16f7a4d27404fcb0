"""Process sets that only their members create, and numbers that separate the operations of process groups."""

import hashlib
import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import find, register_as
from horovod.common.state import state
from horovod.torch.distributed.work import watch

FIRST, LAST = 6, 252
"""First and last frontend number of process groups. Lower numbers are defined in ``horovod.common.frontends``."""

UPWARDS, DOWNWARDS = 253, 254
"""Frontend numbers of messages to higher ranks and to lower ranks."""


class MemberSet:
    """Process set that exists once all its members have requested it. Actions that need it are held until then."""

    def __init__(self, ranks: Sequence[int], engine: Any) -> None:
        """Request the process set from the engine, unless one with these ranks exists."""
        self.ranks = list(ranks)
        self._lock = threading.Lock()
        self._held: list[Callable[[int | None, Exception | None], None]] = []
        self._number = 0 if len(ranks) == state.require_job().size else find(self.ranks)
        self._error: Exception | None = None
        self._adding: Any = None
        if self._number is None:
            text = ",".join(map(str, ranks))
            name = text if len(text) < 64 else hashlib.sha256(text.encode()).hexdigest()
            self._adding = engine.add_process_set(self.ranks, f"members.{name}")

    @property
    def number(self) -> int:
        """Id of the process set, which must exist. Raises the error if the set could not be created."""
        if self._error is not None:
            raise self._error
        assert self._number is not None
        return self._number

    def done(self) -> bool:
        """Return True if the process set exists or could not be created, without waiting."""
        return self.wait(0.0)

    def wait(self, timeout: float = -1.0) -> bool:
        """Wait until the process set exists, then run the held actions. Return False after the timeout (seconds)."""
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
                for action in self._held:
                    action(self._number, error)
                self._held.clear()
        return True

    poll = wait

    def then(self, action: Callable[[int | None, Exception | None], None]) -> None:
        """Call ``action(id, None)`` once the process set exists, or ``action(None, error)`` if it cannot be created."""
        with self._lock:
            if self._adding is None:
                action(self._number, self._error)
                return
            self._held.append(action)
            first = len(self._held) == 1
        if first:
            watch(self)


class Members:
    """Process sets and frontend numbers that belong to one engine."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self._lock = threading.Lock()
        self._sets: dict[tuple[int, ...], MemberSet] = {}
        self._numbers: defaultdict[tuple[int, ...], Any] = defaultdict(lambda: itertools.count(FIRST))

    def set_of(self, ranks: Sequence[int]) -> MemberSet:
        """Return the process set of these ranks, which must be in ascending order. Requests it if necessary."""
        key = tuple(ranks)
        with self._lock:
            if key not in self._sets:
                self._sets[key] = MemberSet(ranks, self.engine)
            return self._sets[key]

    def next_number(self, ranks: Sequence[int]) -> int:
        """Return the frontend number for a new process group of these ranks.

        Raises:
            ValueError: If there were too many process groups of these ranks.
        """
        number = int(next(self._numbers[tuple(ranks)]))
        if number > LAST:
            raise ValueError(f"at most {LAST - FIRST + 1} process groups of the same ranks can be created in a job")
        return number

    def submitters(self, number: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return ``Engine.submit`` and ``Engine.run``, bound to the number of a frontend."""
        return partial(self.engine.submit, face=number), partial(self.engine.run, face=number)


_current: list[Members] = []


def current() -> Members:
    """Return the process sets and frontend numbers of the current engine."""
    engine = state.require_engine()
    if not _current or _current[0].engine is not engine:
        _current[:] = [Members(engine)]
    return _current[0]


def forget() -> None:
    """Drop the reference to the engine. Called after the process has left the job."""
    _current.clear()
