"""This process's place in a job, and how its operations reach the engine: while it is in the job, and when it is not.

``state`` holds the one job of the process, ``faces`` the access that each framework has to it.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from horovod.common.exceptions import HorovodInternalError, NotRunningError
from horovod.common.given_sets import Sets
from horovod.common.security.object_seal import Seals

if TYPE_CHECKING:
    from horovod._core import Engine, Work


@dataclass(frozen=True)
class Job:
    """This process's place in the job; immutable for one epoch."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    homogeneous: bool
    dynamic_process_sets: bool
    elastic: bool = False
    waits_for_devices: bool = False
    """Does the program wait until an operation on a device is complete there?"""
    most: int | None = 0
    """Of an elastic job: the most ranks that it may have, None: any number. 0: ranks do not come and go."""
    check_steps: int = 0
    """After how many steps ranks compare what they hold; 0: never."""
    hosts: tuple[str, ...] = ()
    """Names of the ranks' hosts, and numbers of their processes there."""
    pids: tuple[int, ...] = ()
    given_sets: tuple[Sets, ...] = ()
    """The sets that come of each of init's ``process_sets``."""
    first_address: str = ""
    """Of rank 0's host, an address at which this rank is connected with it; empty where both are of one node."""
    seals: Seals = field(default_factory=lambda: Seals(b""), repr=False, compare=False)
    """With which pickled objects prove to come from a member where they leave the host."""


# The words "Horovod has not been initialized" are matched by programs in use, and are those of bindings/python/face.cc.


def not_initialized(*_: Any, **__: Any) -> NoReturn:
    raise ValueError("Horovod has not been initialized in this process; call hvd.init() first")


def shut_down(*_: Any, **__: Any) -> NoReturn:
    raise NotRunningError(
        "Horovod has not been initialized again in this process since it has been shut down; call hvd.init() to start "
        "again"
    )


def forked(*_: Any, **__: Any) -> NoReturn:
    raise HorovodInternalError(
        f"this process (pid {os.getpid()}) was forked from a worker after hvd.init() and is not part of the job; "
        "collectives run in the worker itself only"
    )


class Access:
    """The way to the engine. ``submit`` and ``run`` are the engine's own methods while it is open and functions that
    raise the right error otherwise, so the hot path has no check of its own.
    """

    __slots__ = ("_refuse", "engine", "forked", "job", "run", "submit")

    def __init__(self) -> None:
        self.job: Job | None = None
        self.engine: Engine | None = None
        self.forked = False
        self.submit: Callable[..., Work]
        """``Engine.submit`` of horovod/_core.pyi; raises ValueError before init and HorovodInternalError after
        shutdown and in a forked child."""
        self.run: Callable[..., Work]
        """``Engine.run``: submit for a caller that calls ``Work.wait`` next, the fast way for blocking operations."""
        self._refuse: Callable[..., NoReturn]
        self._say(not_initialized)

    def open(
        self, job: Job, engine: "Engine", submit: "Callable[..., Work] | None", run: "Callable[..., Work] | None"
    ) -> None:
        """From now on operations go to ``engine``, by its own methods or by those given."""
        self.job = job
        self.engine = engine
        self.forked = False
        self.submit = submit or engine.submit
        self.run = run or engine.run

    def close(self) -> None:
        """The job is over, as far as this access is concerned."""
        self.job = None
        self.engine = None
        self._say(shut_down)

    def leave_in_child(self) -> None:
        """In a forked child: ranks stay known (data loaders ask for them), the engine is out of reach."""
        if self.engine is not None:
            self.engine = None
            self.forked = True
            self._say(forked)

    def require_job(self) -> Job:
        """Raises ValueError naming init when not initialised."""
        return self.job if self.job is not None else not_initialized()

    def require_engine(self) -> "Engine":
        """Raises ValueError before init, HorovodInternalError after shutdown and in a forked child."""
        return self.engine if self.engine is not None else self._refuse()

    def _say(self, refuse: Callable[..., NoReturn]) -> None:
        self.submit = self.run = self._refuse = refuse
