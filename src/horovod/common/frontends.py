"""Job of this process, and its frontends, one per framework that uses Horovod.

All share one engine. Each frontend has a number, which keeps its operation names, groups, unnamed operations and joins
apart from those of other frontends. Each frontend enters and leaves the job by itself (``basics``).
"""

import importlib.util
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from horovod.common.job import Access, Job

if TYPE_CHECKING:
    from horovod._core import Engine

__all__ = ["Job", "State", "library_path", "state"]


class Frontend(Access):
    """Access of one frontend to the job; its operations carry the frontend's number."""

    __slots__ = ("name", "number")

    def __init__(self, name: str, number: int) -> None:
        """Create a frontend that is not in a job yet.

        Args:
            name: Name of the framework's module.
            number: Number of the frontend, 0 to 255; also compiled into native libraries.
        """
        super().__init__()
        self.name = name
        self.number = number

    def enter(self, job: Job, engine: "Engine") -> None:
        """Give the frontend access to the job; called by ``init``."""
        from horovod import _core

        # The engine's own methods use number 0, so a frontend with this number needs no wrapper.
        submit = partial(engine.submit, face=self.number) if self.number else None
        run = partial(engine.run, face=self.number) if self.number else None
        self.open(job, engine, submit, run)
        _core.serve_face(self.number, True)

    def leave(self) -> None:
        """End the frontend's access to the job, on ``shutdown`` or after the job's end; no effect outside a job."""
        if self.engine is None:
            return
        from horovod import _core

        _core.serve_face(self.number, False)
        self.close()


TORCH = Frontend("torch", 0)
TENSORFLOW = Frontend("tensorflow", 1)  # The number must be the one in bindings/tensorflow/call.h.
KERAS = Frontend("keras", 2)  # Keras with the JAX backend; other backends use the frontends above.
JAX = Frontend("jax", 3)
MXNET = Frontend("mxnet", 4)
NUMPY = Frontend("numpy", 5)
_OTHERS = 255  # process groups of torch.distributed use 6 to 254 (horovod.torch.distributed.members)

_known = {face.name: face for face in (TORCH, TENSORFLOW, KERAS, JAX, MXNET, NUMPY)}


def named(name: str) -> Frontend:
    """Return the frontend of this name.

    Frontends that are not in the table call nothing but ``init`` and ``shutdown``, so they share one number.
    """
    if name not in _known:
        _known[name] = Frontend(name, _OTHERS)
    return _known[name]


PROCESS_NAMES = (
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "dump",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "log_stats",
    "max_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "report",
    "rocm_built",
    "should_stop",
    "shutdown",
    "size",
    "start_timeline",
    "stats",
    "step",
    "stop_timeline",
)
"""Names of the functions of ``HorovodBasics`` that each frontend exports."""

SHARED_NAMES = (
    "HorovodInternalError",
    "ProcessSet",
    "add_process_set",
    "global_process_set",
    "remove_process_set",
    *PROCESS_NAMES,
)
"""Names that each frontend exports, besides its reductions (``ops.OP_NAMES``) and its own functions."""


# Job of this process, with its place in the job and the engine.


class State(Access):
    """The process's job, and access to it for code that belongs to no frontend. Only ``basics`` sets the fields."""

    __slots__ = ("faces", "left", "members")

    def __init__(self) -> None:
        super().__init__()
        self.members: list[int] | None = None
        """World ranks that form the job, by rank of the job; None: all."""
        self.faces: dict[str, Frontend] = {}
        """Frontends in the job, by name."""
        self.left: set[str] = set()
        """Names of frontends that were in the job and have shut down."""

    def start(self, job: Job, engine: "Engine", members: list[int] | None) -> None:
        """Start the job: open the access, and let native libraries use the engine."""
        self.members = members
        self.open(job, engine, None, None)
        engine.serve_faces(job.rank, job.size, job.local_rank, job.local_size)

    def stop(self) -> None:
        """End the access of this process and of all its frontends."""
        if self.engine is not None:
            from horovod import _core

            _core.serve_no_faces()
        for face in self.faces.values():
            face.leave()
        self.faces.clear()
        self.left.clear()
        self.members = None
        self.close()

    def leave_in_child(self) -> None:
        """Reject the operations of all frontends in a forked child."""
        if self.engine is not None:
            self.engine.abandon()
            super().leave_in_child()
            for face in self.faces.values():
                face.leave_in_child()


state = State()


def library_path(name: str) -> Path:
    """Return the path of the library installed as ``name``, for example "horovod.tensorflow._tf".

    This asks Python's import system, because an editable install keeps built files apart from the sources.

    Raises:
        ImportError: If the library is not installed.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ImportError(f"the native library {name} is not part of this installation of horovod")
    return Path(spec.origin)
