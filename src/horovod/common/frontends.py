"""This process's job and its frontends, one per framework that uses Horovod.

All frontends share one engine. Each frontend has a number, which separates its operation names, groups, unnamed
operations and joins from those of other frontends. Each frontend enters and leaves the job independently (``basics``).
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
    """Handle through which one frontend uses the job. The frontend's number is part of its operation names."""

    __slots__ = ("name", "number")

    def __init__(self, name: str, number: int) -> None:
        """Create a frontend that is not in a job yet.

        Args:
            name: Name of the framework's module.
            number: Number of the frontend, 0 to 255. Native libraries contain the same number.
        """
        super().__init__()
        self.name = name
        self.number = number

    def enter(self, job: Job, engine: "Engine") -> None:
        """Attach the frontend to the job. Called by ``init``."""
        from horovod import _core

        # The engine's methods assume frontend number 0 by default, so only other frontends need a wrapper.
        submit = partial(engine.submit, face=self.number) if self.number else None
        run = partial(engine.run, face=self.number) if self.number else None
        self.open(job, engine, submit, run)
        _core.serve_face(self.number, True)

    def leave(self) -> None:
        """Detach the frontend from its job, on ``shutdown`` or after the job's end. Idempotent."""
        if self.engine is None:
            return
        from horovod import _core

        _core.serve_face(self.number, False)
        self.close()


TORCH = Frontend("torch", 0)
# bindings/tensorflow/call.h defines the same number for TensorFlow.
TENSORFLOW = Frontend("tensorflow", 1)
# Keras uses this frontend only with the JAX backend. With other backends, Keras uses the backend framework's frontend.
KERAS = Frontend("keras", 2)
JAX = Frontend("jax", 3)
MXNET = Frontend("mxnet", 4)
NUMPY = Frontend("numpy", 5)
_OTHERS = 255  # process groups of torch.distributed use 6 to 254 (horovod.torch.distributed.members)

_known = {face.name: face for face in (TORCH, TENSORFLOW, KERAS, JAX, MXNET, NUMPY)}


def named(name: str) -> Frontend:
    """Return the frontend with this name.

    The frontends defined in this module have separate numbers. Other frontends share one number, because they call only
    ``init`` and ``shutdown``.
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


class State(Access):
    """Process-wide job state, and engine access for code outside frontends. Only ``basics`` assigns the fields."""

    __slots__ = ("faces", "left", "members")

    def __init__(self) -> None:
        super().__init__()
        self.members: list[int] | None = None
        """World ranks that form the job, by rank of the job, or None for all world ranks."""
        self.faces: dict[str, Frontend] = {}
        """Frontends in the job, by name."""
        self.left: set[str] = set()
        """Names of frontends that were in the job and have shut down."""

    def start(self, job: Job, engine: "Engine", members: list[int] | None) -> None:
        """Attach a started job, so that Python code and native libraries can use its engine."""
        self.members = members
        self.open(job, engine, None, None)
        engine.serve_faces(job.rank, job.size, job.local_rank, job.local_size)

    def stop(self) -> None:
        """Detach this process and all its frontends from the job."""
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

    The search uses Python's import system, because an editable install keeps built files and sources in different
    places.

    Raises:
        ImportError: If the library is not installed.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ImportError(f"the native library {name} is not part of this installation of horovod")
    return Path(spec.origin)
