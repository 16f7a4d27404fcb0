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

from horovod.common import arguments, communicators, descent, ending, faces, launchers, observed, stopping, util
from horovod.common.contract import worker_env
from horovod.common.contract.settings import BY_NAME, Settings
from horovod.common.process_sets import ProcessSet, adopt, fill, find, forget_all, global_process_set
from horovod.common.state import Job, state
from horovod.common.training import training

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
        the others do not call it. Or an mpi4py communicator in a job that an MPI launcher has started: its members call
        init, and rank() is their rank in it. ``process_sets``: sets to register, or "dynamic". The same on all ranks;
        of sets made from communicators each rank gives its own (see ``given_sets``). A face that joins the job of
        another one may leave both out, or ask for what that job has.

        After ``shutdown`` of this face, while others are still in the job: joins it again. When it has ended, because a
        rank was lost or has left, it is stopped for the others too and a new one begins, in which all ranks have to
        call init; operations of the other faces raise HorovodInternalError, as after shutdown, until they call it too.

        Raises ValueError for wrong arguments or settings, for ``comm`` and ``process_sets`` that the running job does
        not have, for a communicator that is not one of this job, and when the job cannot be formed, naming what was
        waited for; init may then be called again. NotImplementedError for a list as ``comm`` with sets made from
        communicators.
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
                _stop("hvd.shutdown() was called" + training.progress())

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

    def max_size(self) -> int | None:
        """The most processes that the job may have; None: any number. In jobs that are not elastic ``size()``."""
        job = self._face.require_job()
        return job.size if job.most == 0 else job.most

    def should_stop(self) -> bool:
        """Has any rank been asked to stop, by SIGTERM or SIGUSR1 (HOROVOD_STOP_SIGNALS)? All ranks call it at the same
        place, once a step, say, and all get the same answer; it costs a reduction of one byte.

        From the first call on, which belongs into the main thread, such a signal does not end the process any more; a
        second one does. Programs save a checkpoint and return when the answer is True.

        Raises ValueError when not initialised, for the first call in another thread and for a HOROVOD_STOP_SIGNALS that
        names no signals; HorovodInternalError when a peer is lost.
        """
        return stopping.should_stop(self._face)

    def is_homogeneous(self) -> bool:
        """Has every host the same number of processes?"""
        return self._face.require_job().homogeneous

    def mpi_threads_supported(self) -> bool:
        """May the program use MPI in several threads, while the engine does too where MPI carries the job? Where MPI
        has been started here, by the engine or by mpi4py: as MPI has granted. Else True, for this library leaves MPI
        alone then. False where HOROVOD_MPI_THREADS_DISABLE is set, unless MPI carries the job.

        Raises ValueError naming MPI in other jobs.
        """
        self._face.require_job()
        if not self.mpi_enabled():
            raise ValueError("mpi_threads_supported: MPI neither carries this job nor has it started it")
        if worker_env.carried_by_mpi(os.environ):
            from horovod.common.wiring import mpi

            if (info := mpi.info()) is not None:
                return info.multiple
        if BY_NAME["HOROVOD_MPI_THREADS_DISABLE"].parse(os.environ.get("HOROVOD_MPI_THREADS_DISABLE", "")):
            return False
        return communicators.threads() is not False

    def mpi_enabled(self) -> bool:
        """Does MPI carry the job (HOROVOD_CPU_OPERATIONS=mpi), or did a launcher of MPI start it? May be asked before
        init."""
        place = launchers.find(os.environ)
        return (place is not None and place.mpi) or worker_env.carried_by_mpi(os.environ)

    def gloo_enabled(self) -> bool:
        """Does the built-in engine carry the job by itself, without MPI?"""
        return not worker_env.carried_by_mpi(os.environ)

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


def leave(error: BaseException | None = None) -> None:
    """This process leaves its job, whatever faces are in it, and lives on. ``error``: why, which the other ranks are
    told, as if it had ended the process. Harmless without a job."""
    with _lock:
        _stop("it has left the job" if error is None else ending.told_of(error))


def failures() -> int:
    """How many operations have failed in the job of this process because ranks were lost, 0 unless some were."""
    ended = _ended()
    return 0 if state.engine is None or ended is None or ended[0] == "left" else state.engine.failures()


def _start(comm: Any, process_sets: Sequence[ProcessSet] | str | None) -> None:
    if state.forked:
        raise ValueError(
            f"this process (pid {os.getpid()}) was forked from an initialised worker and cannot join the job; start "
            "processes that "
            "train with horovodrun, or with the 'spawn' method and an environment of their own"
        )
    asked = arguments.check(comm, process_sets)
    members, dynamic = asked.members, asked.dynamic

    # Imported here: the checks above need no engine, and capability queries must work without a usable one.
    from horovod.common.wiring import bootstrap

    env = worker_env.WorkerEnv.from_environ()
    descent.check(env)
    _watch.begin(env.rank if env.worker is None else env.worker)
    if env.worker is None:
        job, engine = bootstrap.start(env, members, asked.given(), dynamic)
    else:
        from horovod.common.wiring import seat

        env, job, engine = seat.join(env, _last[0], members, asked.given(), dynamic)
    state.start(job, engine, members)
    descent.mark(env)
    try:
        settings = Settings.from_environ()
        chaos = _prepare_faults(settings.text("HOROVOD_CHAOS"))
        observed.begin(job, engine, settings, _link(env, settings))
        fill(job, asked.comm, asked.sets)
    except BaseException:
        _stop("hvd.init() failed")
        raise
    _install_hooks()
    if chaos is not None:
        chaos(job)


def _prepare_faults(text: str) -> Callable[[Job], None] | None:
    if not text:
        return None
    from horovod.common import faults

    faults.prepare(text)
    return faults.begin


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
    asked = arguments.check(comm, process_sets)
    members, sets = asked.members, asked.sets
    job = state.require_job()
    who = f"the job that runs for {', '.join(sorted(state.faces))}"
    remedy = "give it to the first init of the process"
    running = list(range(job.size)) if state.members is None else state.members
    if members is not None and members != running:
        raise ValueError(f"comm is {members}, but {who} has world ranks {running}; {remedy}, or None to this one")
    if asked.dynamic and not job.dynamic_process_sets:
        raise ValueError(
            f"process_sets is 'dynamic', but {who} has static ones; {remedy}, or set HOROVOD_DYNAMIC_PROCESS_SETS=1"
        )
    sought = [_ranks_of(entry, running) for entry in sets]
    numbers = [find(ranks) for ranks in sought]
    for index, (ranks, number) in enumerate(zip(sought, numbers, strict=True)):
        if number is None and ranks is not None:
            raise ValueError(
                f"process_sets[{index}] with ranks {ranks} is not a process set of {who}; {remedy}, or register "
                "it with add_process_set, which needs dynamic process sets"
            )
    for entry, number in zip(sets, numbers, strict=True):
        if number is not None:
            adopt(entry, number)
    if asked.comm is not None:
        global_process_set.mpi_comm = asked.comm


def _ranks_of(entry: ProcessSet, running: list[int]) -> list[int] | None:
    """Ranks of the job with these world ranks; None for COMM_NULL: which set the others mean by theirs, only they know.
    World ranks that the job does not have stay as they are, and the set is found nowhere."""
    if entry.world_ranks is None:
        return entry.ranks or []
    if not set(entry.world_ranks) <= set(running):
        return entry.world_ranks
    return [running.index(number) for number in entry.world_ranks] or None


def _stop(reason: str) -> None:
    global _last
    engine = state.engine
    if engine is None:
        return
    forget_all()
    _last = _ended(), state.members
    if _last[0] is None:
        _watch.leave(reason)
    from horovod.common.wiring import mpi

    mpi.engine_ends(None if _last[0] is None or _last[0][0] == "left" else _last[0][0])
    observers = observed.take()
    observers.close(_watch.failed)
    state.stop()
    engine.shutdown(reason)
    observers.finish()


def _stop_at_exit() -> None:
    with _lock:
        _watch.at_exit()
        _stop(_watch.reason + (training.progress() if _watch.reason == ending.ENDED else ""))


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
