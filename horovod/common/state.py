"""The one job of this process: who we are in it and the engine that runs it. Frameworks see it through their face
(``faces``).
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from horovod.common.exceptions import HorovodInternalError
from horovod.common.security.object_seal import Seals

if TYPE_CHECKING:
    from horovod._core import Engine, Work
    from horovod.common.faces import Face
    from horovod.common.process_sets import ProcessSet


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
    check_steps: int = 0
    """After how many steps ranks compare what they hold; 0: never."""
    seals: Seals = field(default_factory=lambda: Seals(b""), repr=False, compare=False)
    """With which pickled objects prove to come from a member where they leave the host."""


def not_initialized(*_: Any, **__: Any) -> NoReturn:
    raise ValueError("Horovod is not initialised in this process; call hvd.init() first")


def shut_down(*_: Any, **__: Any) -> NoReturn:
    raise HorovodInternalError("Horovod has been shut down in this process; call hvd.init() to start again")


def forked(*_: Any, **__: Any) -> NoReturn:
    raise HorovodInternalError(
        f"this process (pid {os.getpid()}) was forked from a worker after hvd.init() and is not part of the job; "
        "collectives run in the worker itself only"
    )


class State:
    """Fields are set by ``basics`` only."""

    __slots__ = ("engine", "faces", "forked", "job", "left", "members", "process_sets", "run", "submit", "twins")

    def __init__(self) -> None:
        self.job: Job | None = None
        self.engine: Engine | None = None
        self.submit: Callable[..., Work] = not_initialized
        """``Engine.submit`` for what belongs to no face; as in ``Face``."""
        self.run: Callable[..., Work] = not_initialized
        self.members: list[int] | None = None
        """Sorted world ranks that form the job; None: all."""
        self.process_sets: dict[int, ProcessSet] = {}
        self.twins: dict[int, list[ProcessSet]] = {}
        """Further objects for a set in ``process_sets``, by id."""
        self.faces: dict[str, Face] = {}
        """Those that are in the job, by name."""
        self.left: set[str] = set()
        """Names of those that were in it and have shut down."""
        self.forked = False

    def start(self, job: Job, engine: "Engine", members: list[int] | None) -> None:
        self.job = job
        self.members = members
        self.engine = engine
        self.submit = engine.submit
        self.run = engine.run
        self.forked = False
        engine.serve_faces(job.rank, job.size, job.local_rank, job.local_size)

    def stop(self) -> None:
        if self.engine is not None:
            from horovod import _core

            _core.serve_no_faces()
        for face in self.faces.values():
            face.leave()
        self.faces.clear()
        self.left.clear()
        self.job = None
        self.engine = None
        self.submit = self.run = shut_down
        self.members = None
        self.process_sets.clear()
        self.twins.clear()

    def leave_in_child(self) -> None:
        """In a forked child: ranks stay known (data loaders ask for them), the engine is out of reach."""
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.abandon()
            self.submit = self.run = forked
            self.forked = True
            for face in self.faces.values():
                face.leave_in_child()

    def require_job(self) -> Job:
        """Raises ValueError naming init when not initialised."""
        return self.job if self.job is not None else not_initialized()

    def require_engine(self) -> "Engine":
        """Raises ValueError before init, HorovodInternalError after shutdown and in a forked child."""
        return self.engine if self.engine is not None else self.submit()  # type: ignore[return-value]


state = State()
