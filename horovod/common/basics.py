"""init, shutdown and the questions about ranks and capabilities: the same for every face.

A face makes one ``HorovodBasics(face)`` and exports its methods. All faces of a process share one engine (``state``):
it starts with the first ``init`` and ends with the last ``shutdown``. A face that has shut down is out of the job,
though others may still be in it.
"""

import atexit
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from horovod.common import descent, ending, faces, launchers, observed, util
from horovod.common.contract import worker_env
from horovod.common.contract.settings import BY_NAME, Settings
from horovod.common.process_sets import (
    ProcessSet,
    adopt,
    check_new,
    check_ranks,
    fill_global,
    find,
    forget_all,
    register,
)
from horovod.common.state import Job, state

__all__ = ["HorovodBasics"]

_lock = threading.RLock()
_last: tuple[ending.Ended, list[int] | None] = None, None  # why the last engine had ended when it was left, its members


def _ended() -> ending.Ended:
    """Why the engine that runs has ended, if it has."""
    return state.engine.ended() if state.engine is not None else None


def _about() -> tuple[ending.Ended, list[int] | None]:
    return _last if state.engine is None else (_ended(), state.members)


_watch = ending.Watch(_about)


class HorovodBasics(observed.Observed):
    """init, shutdown and the questions, for one face; with what programs ask of those that observe the job."""

    def __init__(self, face: str) -> None:
        """``face``: name of the framework's module, for example "torch"; see ``faces``."""
        self._face = faces.named(face)

    def init(self, comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
        """Joins the job that the environment describes (without any: a job of this process alone). No effect while
        initialised.

        ``comm``: None, or the list of world ranks that form the job; every one of them calls init with the same list,
        the others do not call it. ``process_sets``: sets to register, the same on all ranks, or "dynamic". A face that
        joins the job of another one may leave both out, or ask for what that job has.

        After ``shutdown`` of this face, while others are still in the job: joins it again. When it has ended, because a
        rank was lost or has left, it is stopped for the others too and a new one begins, in which all ranks have to
        call init; operations of the other faces raise HorovodInternalError, as after shutdown, until they call it too.

        Raises ValueError for wrong arguments or settings, for ``comm`` and ``process_sets`` that the running job does
        not have, and when the job cannot be formed, naming what was waited for; init may then be called again.
        ImportError when the native engine cannot be loaded.
        """
        with _lock:
            if self._face.engine is None:
                # A face that comes for the first time finds the end as the others do, by an operation that tells why:
                # the ranks that are still there must not wait for each other in different places.
                if state.engine is not None and self._face.name in state.left and _ended() is not None:
                    _stop("hvd.init() was called after the job had ended")
                if state.engine is None:
                    _start(comm, process_sets)
                else:
                    _ask_running(comm, process_sets)
            assert state.job is not None
            assert state.engine is not None
            state.left.discard(self._face.name)
            state.faces[self._face.name] = self._face
            self._face.enter(state.job, state.engine)

    def shutdown(self) -> None:
        """Leaves the job. When no other face of this process is in it, pending operations fail with
        HorovodInternalError, here and on the other ranks; otherwise they end when the other ranks have them too.
        Harmless when not initialised."""
        with _lock:
            self._face.leave()
            if state.faces.pop(self._face.name, None) is not None:
                state.left.add(self._face.name)
            if not state.faces:
                _stop("hvd.shutdown() was called")

    def is_initialized(self) -> bool:
        """Has this face joined a job?"""
        return self._face.engine is not None

    def rank(self) -> int:
        """Index of this process in the job, 0 to size - 1. Like all that follow: ValueError when not initialised."""
        return self._face.require_job().rank

    def size(self) -> int:
        """Number of processes in the job."""
        return self._face.require_job().size

    def local_rank(self) -> int:
        """Index of this process among those of its host."""
        return self._face.require_job().local_rank

    def local_size(self) -> int:
        """Number of processes on this host."""
        return self._face.require_job().local_size

    def cross_rank(self) -> int:
        """Index of this host among those that have a process with this local rank."""
        return self._face.require_job().cross_rank

    def cross_size(self) -> int:
        """Number of hosts that have a process with this local rank."""
        return self._face.require_job().cross_size

    def is_homogeneous(self) -> bool:
        """Has every host the same number of processes?"""
        return self._face.require_job().homogeneous

    def mpi_threads_supported(self) -> bool:
        """May the program use MPI in several threads, as far as this library is concerned? It never calls MPI itself,
        so True in a job that an MPI launcher started, unless HOROVOD_MPI_THREADS_DISABLE is set.

        Raises ValueError in others.
        """
        self._face.require_job()
        if not self.mpi_enabled():
            raise ValueError("mpi_threads_supported: this job was not started by MPI")
        return not BY_NAME["HOROVOD_MPI_THREADS_DISABLE"].parse(os.environ.get("HOROVOD_MPI_THREADS_DISABLE", ""))

    def mpi_enabled(self) -> bool:
        """Did an MPI launcher start the job? The built-in engine carries it all the same. May be asked before init."""
        place = launchers.find(os.environ)
        return place is not None and place.mpi

    def gloo_enabled(self) -> bool:
        """Does the built-in engine carry the job?"""
        return True

    def mpi_built(self) -> bool:
        """Is mpi4py importable?"""
        return util.mpi_built()

    def gloo_built(self) -> bool:
        """True."""
        return util.gloo_built()

    def nccl_built(self) -> int:
        """Version code of the NCCL library that ranks here would use (22809 for 2.28.9), else 0. It is not loaded."""
        return util.nccl_built()

    def ddl_built(self) -> bool:
        """False."""
        return util.ddl_built()

    def ccl_built(self) -> bool:
        """False."""
        return util.ccl_built()

    def cuda_built(self) -> bool:
        """Can CUDA's driver be loaded? Says nothing about GPUs, and does not start CUDA."""
        return util.cuda_built()

    def rocm_built(self) -> bool:
        """False."""
        return util.rocm_built()

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        return self._face.require_engine().process_sets()


def _start(comm: Any, process_sets: Sequence[ProcessSet] | str | None) -> None:
    if state.forked:
        raise ValueError(
            f"this process (pid {os.getpid()}) was forked from an initialised worker and cannot join the job; start "
            "processes that "
            "train with horovodrun, or with the 'spawn' method and an environment of their own"
        )
    members, sets, dynamic = _check_arguments(comm, process_sets)

    # Imported here: the checks above need no engine, and capability queries must work without a usable one.
    from horovod.common.wiring import bootstrap

    env = worker_env.WorkerEnv.from_environ()
    descent.check(env)
    _watch.begin(env.rank)
    job, engine = bootstrap.start(env, members, [s.ranks or [] for s in sets], dynamic)
    state.start(job, engine, members)
    descent.mark(env)
    try:
        settings = Settings.from_environ()
        observed.begin(job, engine, settings, _link(env, settings))
        _fill_sets(job, sets)
    except BaseException:
        _stop("hvd.init() failed")
        raise
    _install_hooks()


def _link(env: worker_env.WorkerEnv, settings: Settings) -> Callable[[], float | None]:
    """Asks for what a link was measured to carry, in bytes a second; None: it was not."""

    def ask() -> float | None:
        from horovod.common.wiring import calibration

        if not settings.flag("HOROVOD_CALIBRATE"):
            return None
        transport = settings.text("HOROVOD_TRANSPORT")
        return calibration.link_bandwidth(calibration.World.here(env.size, env.local_size, env.cross_size, transport))

    return ask


def _ask_running(comm: Any, process_sets: Sequence[ProcessSet] | str | None) -> None:
    """Joining another face's job: does it have what the arguments ask for? Gives ids to the sets among them."""
    members, sets, dynamic = _check_arguments(comm, process_sets)
    job = state.require_job()
    who = f"the job that runs for {', '.join(sorted(state.faces))}"
    remedy = "give it to the first init of the process"
    running = list(range(job.size)) if state.members is None else state.members
    if members is not None and members != running:
        raise ValueError(f"comm is {members}, but {who} has world ranks {running}; {remedy}, or None to this one")
    if dynamic and not job.dynamic_process_sets:
        raise ValueError(
            f"process_sets is 'dynamic', but {who} has static ones; {remedy}, or set HOROVOD_DYNAMIC_PROCESS_SETS=1"
        )
    numbers = [find(entry) for entry in sets]
    for index, (entry, number) in enumerate(zip(sets, numbers, strict=True)):
        if number is None:
            raise ValueError(
                f"process_sets[{index}] with ranks {entry.ranks} is not a process set of {who}; {remedy}, or register "
                "it with add_process_set, which needs dynamic process sets"
            )
    for entry, number in zip(sets, numbers, strict=True):
        assert number is not None
        adopt(entry, number)


def _check_arguments(comm: Any, process_sets: Any) -> tuple[list[int] | None, list[ProcessSet], bool]:
    if util.is_mpi_comm(comm):
        raise ValueError(
            "comm: an MPI communicator is given, but MPI does not carry this job; give a list of world ranks"
        )
    members = None if comm is None else check_ranks(comm, "comm")
    if members == []:
        members = None
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(f"process_sets is {process_sets!r}, accepted are None, a list of ProcessSet, or 'dynamic'")
        return members, [], True
    sets = [] if process_sets is None else list(process_sets)
    seen: dict[tuple[int, ...], int] = {}
    for index, entry in enumerate(sets):
        if not isinstance(entry, ProcessSet):
            raise ValueError(f"process_sets[{index}] is {entry!r}, accepted is a ProcessSet")
        ranks = tuple(entry.ranks or ())
        if ranks in seen:
            raise ValueError(f"process_sets[{index}] with ranks {list(ranks)} repeats process_sets[{seen[ranks]}]")
        seen[ranks] = index
    return members, sets, False


def _fill_sets(job: Job, sets: Sequence[ProcessSet]) -> None:
    fill_global(job.size)
    for index, entry in enumerate(sets):
        try:
            check_new(entry, job.size)
            register(entry)
        except ValueError as error:
            raise ValueError(f"process_sets[{index}]: {error}") from None


def _stop(reason: str) -> None:
    global _last
    engine = state.engine
    if engine is None:
        return
    forget_all()
    _last = _ended(), state.members
    if _last[0] is None:
        _watch.leave(reason)
    observers = observed.take()
    observers.close()
    state.stop()
    engine.shutdown(reason)
    observers.finish()


def _stop_at_exit() -> None:
    with _lock:
        _watch.at_exit()
        _stop(_watch.reason)


_installed = False


def _install_hooks() -> None:
    global _installed
    if _installed:
        return
    _installed = True
    atexit.register(_stop_at_exit)
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # another thread may have held it
    observed.leave_in_child()
    state.leave_in_child()
    worker_env.forget_keys()
    _watch.forget()
