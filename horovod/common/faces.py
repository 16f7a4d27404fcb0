"""The faces of this process: one for each framework that uses Horovod.

All share one engine. Each has operation names, groups, unnamed operations and joins of its own there, told apart by the
face's number, and enters and leaves the job by itself (``basics``).
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from horovod.common.state import Job, forked, not_initialized, shut_down

if TYPE_CHECKING:
    from horovod._core import Engine, Work


class Face:
    """What one face may use of the job. ``submit`` and ``run`` are the engine's own methods while the face is in the
    job and functions that raise the right error otherwise, so the hot path has no check of its own.
    """

    __slots__ = ("engine", "forked", "job", "name", "number", "run", "submit")

    def __init__(self, name: str, number: int) -> None:
        """``number``: 0 to 255; native libraries have it built in."""
        self.name = name
        self.number = number
        self.job: Job | None = None
        self.engine: Engine | None = None
        self.forked = False
        self.submit: Callable[..., Work] = not_initialized
        """``Engine.submit`` of horovod/_core.pyi with this face's number; raises ValueError before init and
        HorovodInternalError after shutdown.
        """
        self.run: Callable[..., Work] = not_initialized
        """``Engine.run``: submit for a caller that calls ``Work.wait`` next, the fast way for blocking operations."""

    def enter(self, job: Job, engine: "Engine") -> None:
        """The face has called init."""
        from horovod import _core

        self.job = job
        self.engine = engine
        self.forked = False
        # Zero is what the methods do without being told, and what is bound needs no help.
        self.submit = engine.submit if self.number == 0 else partial(engine.submit, face=self.number)
        self.run = engine.run if self.number == 0 else partial(engine.run, face=self.number)
        _core.serve_face(self.number, True)

    def leave(self) -> None:
        """The face has called shutdown, or the job has ended. Harmless when it is not in a job."""
        if self.engine is None:
            return
        from horovod import _core

        _core.serve_face(self.number, False)
        self.job = None
        self.engine = None
        self.submit = self.run = shut_down

    def leave_in_child(self) -> None:
        """In a forked child: ranks stay known (data loaders ask for them), the engine is out of reach."""
        if self.engine is not None:
            self.engine = None
            self.submit = self.run = forked
            self.forked = True

    def require_job(self) -> Job:
        """Raises ValueError naming init when not initialised."""
        return self.job if self.job is not None else not_initialized()

    def require_engine(self) -> "Engine":
        """Raises ValueError before init, HorovodInternalError after shutdown and in a forked child."""
        return self.engine if self.engine is not None else self.submit()  # type: ignore[return-value]


TORCH = Face("torch", 0)
TENSORFLOW = Face("tensorflow", 1)  # bindings/tensorflow/call.h
KERAS = Face("keras", 2)  # Keras on JAX; its other backends are the frameworks above
_OTHERS = 255

_known = {face.name: face for face in (TORCH, TENSORFLOW, KERAS)}


def named(name: str) -> Face:
    """The face of this name. What is in the table has a number of its own; others, which only init and shutdown, share
    one."""
    if name not in _known:
        _known[name] = Face(name, _OTHERS)
    return _known[name]
