"""The faces of this process: one for each framework that uses Horovod.

All share one engine. Each has operation names, groups, unnamed operations and joins of its own there, told apart by the
face's number, and enters and leaves the job by itself (``basics``).
"""

from functools import partial
from typing import TYPE_CHECKING

from horovod.common.job import Access, Job

if TYPE_CHECKING:
    from horovod._core import Engine


class Face(Access):
    """What one face may use of the job; its operations have the face's number."""

    __slots__ = ("name", "number")

    def __init__(self, name: str, number: int) -> None:
        """``number``: 0 to 255; native libraries have it built in."""
        super().__init__()
        self.name = name
        self.number = number

    def enter(self, job: Job, engine: "Engine") -> None:
        """The face has called init."""
        from horovod import _core

        # Zero is what the methods do without being told, and what is bound needs no help.
        submit = partial(engine.submit, face=self.number) if self.number else None
        run = partial(engine.run, face=self.number) if self.number else None
        self.open(job, engine, submit, run)
        _core.serve_face(self.number, True)

    def leave(self) -> None:
        """The face has called shutdown, or the job has ended. Harmless when it is not in a job."""
        if self.engine is None:
            return
        from horovod import _core

        _core.serve_face(self.number, False)
        self.close()


TORCH = Face("torch", 0)
TENSORFLOW = Face("tensorflow", 1)  # bindings/tensorflow/call.h
KERAS = Face("keras", 2)  # Keras on JAX; its other backends are the frameworks above
JAX = Face("jax", 3)
MXNET = Face("mxnet", 4)
NUMPY = Face("numpy", 5)
_OTHERS = 255

_known = {face.name: face for face in (TORCH, TENSORFLOW, KERAS, JAX, MXNET, NUMPY)}


def named(name: str) -> Face:
    """The face of this name. What is in the table has a number of its own; others, which only init and shutdown, share
    one."""
    if name not in _known:
        _known[name] = Face(name, _OTHERS)
    return _known[name]
