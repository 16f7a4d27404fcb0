"""This process's job and its frontends, one per framework that uses Horovod.

All frontends share one engine. Each frontend has a number, which keeps its operation names, groups, unnamed operations
and joins apart from those of other frontends. Each frontend enters and leaves the job independently (``basics``).
Outside a job, access to the engine raises an error that says so.
"""

import functools
import importlib.util
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from horovod.common.communicators import Sets
from horovod.common.exceptions import HorovodInternalError, NotRunningError
from horovod.common.security.object_seal import Seals

if TYPE_CHECKING:
    from horovod._core import Engine, Work


@dataclass(frozen=True)
class Job:
    """This process's rank in the job, and properties of the job. They do not change during an epoch."""

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
    """True if a wait for an operation on a device includes its completion on the device."""
    max_size: int | None = 0
    """Maximum number of ranks of an elastic job (None if unlimited), or 0 for a job with a fixed number."""
    check_steps: int = 0
    """Number of steps between comparisons of the ranks' parameters, or 0 for no comparisons."""
    hosts: tuple[str, ...] = ()
    """Host name of each rank. ``pids`` contains the process ids."""
    pids: tuple[int, ...] = ()
    requested_sets: tuple[Sets, ...] = ()
    """Process sets on which the ranks agreed, for each entry of ``init``'s argument ``process_sets``."""
    first_address: str = ""
    """Address at which this rank is connected to rank 0's host, or "" if both are on one node."""
    seals: Seals = field(default_factory=lambda: Seals(b""), repr=False, compare=False)
    """Seals that authenticate pickled objects that leave the host."""


# Existing programs search messages for "Horovod has not been initialized". bindings/python/frontend.cc has it too.


def not_initialized(*_: Any, **__: Any) -> NoReturn:
    """Raise the error for an operation that was called before ``init``."""
    raise ValueError("Horovod has not been initialized in this process; call hvd.init() first")


def shut_down(*_: Any, **__: Any) -> NoReturn:
    """Raise the error for an operation that was called after ``shutdown``."""
    raise NotRunningError(
        "Horovod has not been initialized again in this process since it has been shut down; call hvd.init() to start "
        "again"
    )


def forked(*_: Any, **__: Any) -> NoReturn:
    """Raise the error for an operation called in a forked child."""
    raise HorovodInternalError(
        f"this process (pid {os.getpid()}) was forked from a worker after hvd.init() and is not part of the job; "
        "collectives run in the worker itself only"
    )


class Access:
    """Gateway for submitting operations to the engine.

    While a job runs, ``submit`` and ``run`` are the engine's own methods. Otherwise they are functions that raise the
    appropriate error. This keeps checks out of performance-critical code.
    """

    __slots__ = ("_refuse", "engine", "forked", "job", "run", "submit")

    def __init__(self) -> None:
        self.job: Job | None = None
        self.engine: Engine | None = None
        self.forked = False
        self.submit: Callable[..., Work]
        """``Engine.submit`` (src/horovod/_core.pyi).

        Raises ValueError before ``init``, and HorovodInternalError after ``shutdown`` and in a forked child.
        """
        self.run: Callable[..., Work]
        """``Engine.run``, a faster ``submit`` for callers that call ``Work.wait`` next."""
        self._refuse: Callable[..., NoReturn]
        self._message(not_initialized)

    @property
    def opened(self) -> bool:
        """True if a job has ever been attached to this object."""
        return self.job is not None or self._refuse is not not_initialized

    def open(
        self, job: Job, engine: "Engine", submit: "Callable[..., Work] | None", run: "Callable[..., Work] | None"
    ) -> None:
        """Use ``engine`` for operations of ``job``.

        If not None, ``submit`` and ``run`` replace the engine's methods.
        """
        self.job = job
        self.engine = engine
        self.forked = False
        self.submit = submit or engine.submit
        self.run = run or engine.run

    def close(self) -> None:
        """Reject all further operations, because the job has ended."""
        self.job = None
        self.engine = None
        self._message(shut_down)

    def leave_in_child(self) -> None:
        """Reject all operations in a forked child. The job remains readable, because data loaders query the rank."""
        if self.engine is not None:
            self.engine = None
            self.forked = True
            self._message(forked)

    def require_job(self) -> Job:
        """Return the job. If there is none, raises a ValueError that advises calling ``init``."""
        return self.job if self.job is not None else not_initialized()

    def require_engine(self) -> "Engine":
        """Return the engine of the current job.

        Raises:
            ValueError: If ``init`` has not been called.
            HorovodInternalError: If called after ``shutdown`` or in a forked child.
        """
        return self.engine if self.engine is not None else self._refuse()

    def _message(self, refuse: Callable[..., NoReturn]) -> None:
        self.submit = self.run = self._refuse = refuse


# The functions below add this process's rank to the messages of argument errors.

_F = TypeVar("_F", bound=Callable[..., Any])


def refusing(frontend: Access) -> Callable[[_F], _F]:
    """Return a decorator that adds this process's rank, if known, to each ValueError and NotImplementedError.

    The error keeps its type and traceback.
    """

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except (ValueError, NotImplementedError) as error:
                add_rank(frontend, error)
                raise

        return checked  # type: ignore[return-value]

    return decorate


def add_rank(frontend: Access, error: Exception) -> None:
    """Add this process's rank to the message of a caught error."""
    if len(error.args) == 1 and isinstance(error.args[0], str):
        error.args = (with_rank(frontend, error.args[0]),)


def with_rank(frontend: Access, text: str) -> str:
    """Append this process's rank to ``text`` unless the text already names it or the rank is unknown."""
    job = frontend.job
    return text if job is None or re.search(rf"\brank {job.rank}\b", text) else f"{text} (on rank {job.rank})"


def operation_on_rank(frontend: Access, operation: str) -> str:
    """Return the prefix of a message: ``allreduce on rank 1``, or ``allreduce`` if the rank is unknown."""
    return operation if frontend.job is None else f"{operation} on rank {frontend.job.rank}"


class Frontend(Access):
    """Handle through which one frontend uses the job. The frontend's number is part of its operation names."""

    __slots__ = ("name", "number")

    def __init__(self, name: str, number: int) -> None:
        """Create a frontend that is not in a job yet.

        Args:
            name: Name of the framework's module.
            number: Number of the frontend, 0 to 255. The frontend's native library must use the same number.
        """
        super().__init__()
        self.name = name
        self.number = number

    def enter(self, job: Job, engine: "Engine") -> None:
        """Attach the frontend to the job. Called by ``init``."""
        from horovod import _core

        # The engine's methods default to frontend number 0, so only other frontends need a wrapper.
        submit = partial(engine.submit, frontend=self.number) if self.number else None
        run = partial(engine.run, frontend=self.number) if self.number else None
        self.open(job, engine, submit, run)
        _core.serve_frontend(self.number, True)

    def leave(self) -> None:
        """Detach the frontend from its job, after ``shutdown`` or when the job ends.

        Calling this again has no effect.
        """
        if self.engine is None:
            return
        from horovod import _core

        _core.serve_frontend(self.number, False)
        self.close()


TORCH = Frontend("torch", 0)
# The number of the TensorFlow frontend must equal the one in bindings/tensorflow/call.h.
TENSORFLOW = Frontend("tensorflow", 1)
# Keras uses this frontend only with the JAX backend. With other backends, Keras uses the backend framework's frontend.
KERAS = Frontend("keras", 2)
JAX = Frontend("jax", 3)
MXNET = Frontend("mxnet", 4)
NUMPY = Frontend("numpy", 5)
_MAX_ID = 255  # process groups of torch.distributed use 6 to 254 (horovod.torch.distributed.members)

_by_name = {frontend.name: frontend for frontend in (TORCH, TENSORFLOW, KERAS, JAX, MXNET, NUMPY)}


def named(name: str) -> Frontend:
    """Return the frontend with this name.

    The frontends defined in this module have separate numbers. Other frontends share one number, because they call only
    ``init`` and ``shutdown``.
    """
    if name not in _by_name:
        _by_name[name] = Frontend(name, _MAX_ID)
    return _by_name[name]


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

    __slots__ = ("frontends", "left", "members")

    def __init__(self) -> None:
        super().__init__()
        self.members: list[int] | None = None
        """World ranks that form the job, by rank of the job, or None for all world ranks."""
        self.frontends: dict[str, Frontend] = {}
        """Frontends in the job, by name."""
        self.left: set[str] = set()
        """Names of frontends that were in the job and have shut down."""

    def start(self, job: Job, engine: "Engine", members: list[int] | None) -> None:
        """Attach a started job, so that Python code and native libraries can use its engine."""
        self.members = members
        self.open(job, engine, None, None)
        engine.serve_frontends(job.rank, job.size, job.local_rank, job.local_size)

    def stop(self) -> None:
        """Detach this process and all its frontends from the job."""
        if self.engine is not None:
            from horovod import _core

            _core.serve_no_frontends()
        for frontend in self.frontends.values():
            frontend.leave()
        self.frontends.clear()
        self.left.clear()
        self.members = None
        self.close()

    def leave_in_child(self) -> None:
        """Make the operations of all frontends fail in a forked child."""
        if self.engine is not None:
            self.engine.abandon()
            super().leave_in_child()
            for frontend in self.frontends.values():
                frontend.leave_in_child()


state = State()


def library_path(name: str) -> Path:
    """Return the path of the library installed as ``name``, for example "horovod.tensorflow._tf".

    The search uses Python's import system, because an editable install keeps built files and sources in different
    directories.

    Raises:
        ImportError: If the library is not installed.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ImportError(f"the native library {name} is not part of this installation of horovod")
    return Path(spec.origin)
