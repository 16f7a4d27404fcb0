"""Frontends of this process, one per framework that uses Horovod.

All share one engine. Each frontend has a number, which keeps its operation names, groups, unnamed operations and joins
apart from those of other frontends. Each frontend enters and leaves the job by itself (``basics``).
"""

from functools import partial
from typing import TYPE_CHECKING

from horovod.common.job import Access, Job

if TYPE_CHECKING:
    from horovod._core import Engine


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
