"""Initialization, shutdown, and queries about ranks and capabilities, shared by all frontends.

A frontend creates one ``HorovodBasics(name)``, where ``name`` is that of its entry in ``frontends``, and exports its
methods. All frontends of a process share one engine (``state``). The first ``init`` starts the engine and the last
``shutdown`` stops it. After its ``shutdown``, a frontend is no longer part of the job, even if other frontends of the
process are.
"""

import atexit
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from horovod.common import communicators, ending, frontends, launchers, observed, util
from horovod.common.contract import worker_env
from horovod.common.contract.settings import BY_NAME, Settings
from horovod.common.frontends import Job, state
from horovod.common.process_sets import (
    ProcessSet,
    adopt,
    check_init_arguments,
    fill,
    find,
    forget_all,
    global_process_set,
)
from horovod.common.training_loop.observations import training

__all__ = ["HorovodBasics"]

_lock = threading.RLock()
# Why this process's last job ended, and the ranks of that job.
_last: tuple[ending.Ended, list[int] | None] = None, None


def _ended() -> ending.Ended:
    """Return the reason why the engine stopped, or None if it is running or was never started."""
    return state.engine.ended() if state.engine is not None else None


def _about() -> tuple[ending.Ended, list[int] | None]:
    return _last if state.engine is None else (_ended(), state.members)


_watch = ending.Watch(_about)


class HorovodBasics(observed.Observed):
    """One frontend's API for initialization, shutdown, ranks, capabilities and statistics."""

    def __init__(self, frontend: str) -> None:
        """Create one frontend's API.

        Args:
            frontend: Name of the framework's module, for example "torch"; see ``frontends``.
        """
        self._frontend = frontends.named(frontend)

    def init(self, comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
        """Join the job that the environment describes, or start a single-process job.

        Has no effect while this frontend is initialized. All ranks must pass the same arguments, except that each rank
        passes its own communicators in ``process_sets`` (see ``SetSpec``). If another frontend of the process has
        already started the job, omit both arguments or pass values that match the running job.

        If this frontend has shut down while others stay in the job, ``init`` joins the same job again. If a rank was
        lost or has left in the meantime, the job has ended. ``init`` then stops the job for the other frontends too and
        starts a new one, so all ranks must call ``init``. Operations of the other frontends raise HorovodInternalError,
        as after ``shutdown``, until they call ``init`` too.

        Args:
            comm: List of the world ranks that form the job. These ranks call ``init`` with the same list, and other
                processes do not call it. If an MPI launcher has started the job, ``comm`` can also be an mpi4py
                communicator. Then its members call ``init``, and ``rank()`` is the rank in the communicator. None (the
                default): all ranks.
            process_sets: Process sets to register, or "dynamic" to allow adding and removing them later.

        Raises:
            ValueError: If an argument or setting is invalid, if the running job does not have these ``comm`` and
                ``process_sets``, if the communicator is not part of this job, or if the job cannot be formed. The
                message names the problem. ``init`` can be called again.
            NotImplementedError: If ``comm`` is a list and ``process_sets`` contains sets made from communicators.
            ImportError: If the native engine cannot be loaded.
        """
        with _lock:
            if self._frontend.engine is None:
                # The running job might already have failed. If this frontend left the job earlier, the failed job is
                # shut down and a new one is started. A frontend that joins for the first time gets the error from its
                # first operation, as the other frontends do. If ``init`` raised the error instead, ranks would wait for
                # each other in different operations.
                if state.engine is not None and self._frontend.name in state.left and _ended() is not None:
                    _stop("hvd.init() was called after the job had ended")
                if state.engine is None:
                    _start(comm, process_sets)
                else:
                    _ask_running(comm, process_sets)
            assert state.job is not None
            assert state.engine is not None
            state.left.discard(self._frontend.name)
            state.frontends[self._frontend.name] = self._frontend
            self._frontend.enter(state.job, state.engine)

    def shutdown(self) -> None:
        """Leave the job. Has no effect if this frontend is not initialized.

        If no other frontend of this process is in the job, pending operations fail with HorovodInternalError on all
        ranks. If another frontend remains, pending operations complete once the other ranks submit them too.
        """
        with _lock:
            self._frontend.leave()
            if state.frontends.pop(self._frontend.name, None) is not None:
                state.left.add(self._frontend.name)
            if not state.frontends:
                _stop("hvd.shutdown() was called" + training.progress())

    def is_initialized(self) -> bool:
        """Return True if this frontend has joined a job."""
        return self._frontend.engine is not None

    def rank(self) -> int:
        """Return the index of this process in the job, from 0 to size - 1.

        Raises:
            ValueError: If Horovod is not initialized.
        """
        return self._frontend.require_job().rank

    def size(self) -> int:
        """Return the number of processes in the job.

        Raises:
            ValueError: If Horovod is not initialized.
        """
        return self._frontend.require_job().size

    def local_rank(self) -> int:
        """Return the index of this process among the processes on its host.

        Raises:
            ValueError: If Horovod is not initialized.
        """
        return self._frontend.require_job().local_rank

    def local_size(self) -> int:
        """Return the number of processes on this host.

        Raises:
            ValueError: If Horovod is not initialized.
        """
        return self._frontend.require_job().local_size

    def cross_rank(self) -> int:
        """Return the index of this host among the hosts that have a process with this local rank.

        Raises:
            ValueError: If Horovod is not initialized.
        """
        return self._frontend.require_job().cross_rank

    def cross_size(self) -> int:
        """Return the number of hosts that have a process with this local rank.

        Raises:
            ValueError: If Horovod is not initialized.
        """
        return self._frontend.require_job().cross_size

    def max_size(self) -> int | None:
        """Return the maximum number of processes of the job, or None if unlimited.

        Equals ``size()`` unless the job is elastic.

        Raises:
            ValueError: If Horovod is not initialized.
        """
        job = self._frontend.require_job()
        return job.size if job.max_size == 0 else job.max_size

    def should_stop(self) -> bool:
        """Return True on all ranks once any rank has received a stop signal: SIGTERM or SIGUSR1 (HOROVOD_STOP_SIGNALS).

        All ranks must call this at the same point of the program, for example once per step. A call costs a reduction
        of one byte. When it returns True, save a checkpoint and return.

        The first call, which must be made in the main thread, installs the signal handlers. From then on, the first
        stop signal does not end the process, but a second one does.

        Raises:
            ValueError: If Horovod is not initialized, if the first call is in another thread, or if
                HOROVOD_STOP_SIGNALS contains an invalid signal name.
            HorovodInternalError: If a peer is lost.
        """
        return ending.should_stop(self._frontend)

    def is_homogeneous(self) -> bool:
        """Return True if every host has the same number of processes.

        Raises:
            ValueError: If Horovod is not initialized.
        """
        return self._frontend.require_job().homogeneous

    def mpi_threads_supported(self) -> bool:
        """Return True if several threads of this process can call MPI.

        If the engine or mpi4py has initialized MPI in this process, the result reflects the granted thread level. If
        not, the result is True, because Horovod does not call MPI. If HOROVOD_MPI_THREADS_DISABLE is set, the result is
        False unless the job communicates over MPI.

        Raises:
            ValueError: If Horovod is not initialized, or if the job was not started by MPI and does not communicate
                over MPI.
        """
        self._frontend.require_job()
        if not self.mpi_enabled():
            raise ValueError("mpi_threads_supported: MPI neither carries this job nor has it started it")
        if worker_env.carried_by_mpi(os.environ):
            from horovod.common.bootstrap import mpi

            if (info := mpi.info()) is not None:
                return info.multiple
        if BY_NAME["HOROVOD_MPI_THREADS_DISABLE"].parse(os.environ.get("HOROVOD_MPI_THREADS_DISABLE", "")):
            return False
        return communicators.threads() is not False

    def mpi_enabled(self) -> bool:
        """Return True if the job communicates over MPI (HOROVOD_CPU_OPERATIONS=mpi) or was started by an MPI launcher.

        Can be called before ``init``.
        """
        place = launchers.find(os.environ)
        return (place is not None and place.mpi) or worker_env.carried_by_mpi(os.environ)

    def gloo_enabled(self) -> bool:
        """Return True if the built-in engine communicates without MPI."""
        return not worker_env.carried_by_mpi(os.environ)

    def mpi_built(self) -> bool:
        """Return True if mpi4py can be imported."""
        return util.mpi_built()

    def gloo_built(self) -> bool:
        """Return True: Horovod's built-in engine replaces Gloo."""
        return util.gloo_built()

    def nccl_built(self) -> int:
        """Return the NCCL version code, such as 22809 for 2.28.9, or 0 if NCCL is not available.

        NCCL is not loaded by this query.
        """
        return util.nccl_built()

    def ddl_built(self) -> bool:
        """Return False: DDL is not supported."""
        return util.ddl_built()

    def ccl_built(self) -> bool:
        """Return False: oneCCL is not supported."""
        return util.ccl_built()

    def cuda_built(self) -> bool:
        """Return True if the CUDA driver can be loaded.

        CUDA is not initialized, so True does not imply that a GPU is present.
        """
        return util.cuda_built()

    def rocm_built(self) -> bool:
        """Return False: ROCm is not supported."""
        return util.rocm_built()

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        return self._frontend.require_engine().process_sets()


def leave(error: BaseException | None = None) -> None:
    """Remove this process and all its frontends from the job. Does nothing if there is no job.

    Args:
        error: Exception because of which this process leaves, or None. The other ranks show it in their error messages.
    """
    with _lock:
        _stop("it has left the job" if error is None else ending.describe_error(error))


def failures() -> int:
    """Return how many of this process's operations failed because a rank was lost."""
    ended = _ended()
    return 0 if state.engine is None or ended is None or ended[0] == "left" else state.engine.failures()


def _start(comm: Any, process_sets: Sequence[ProcessSet] | str | None) -> None:
    if state.forked:
        raise ValueError(
            f"this process (pid {os.getpid()}) was forked from an initialised worker and cannot join the job; start "
            "processes that "
            "train with horovodrun, or with the 'spawn' method and an environment of their own"
        )
    arguments = check_init_arguments(comm, process_sets)
    members, dynamic = arguments.members, arguments.dynamic

    # Import the engine late, because argument checks and queries such as ``nccl_built`` must work without it.
    from horovod.common.bootstrap import start

    env = worker_env.WorkerEnv.from_environ()
    ending.check_descent(env)
    _watch.begin(env.rank if env.worker is None else env.worker)
    if env.worker is None:
        job, engine = start.start(env, members, arguments.specs(), dynamic)
    else:
        env, job, engine = start.join(env, _last[0], members, arguments.specs(), dynamic)
    state.start(job, engine, members)
    ending.mark_rank_process(env)
    try:
        settings = Settings.from_environ()
        chaos = _prepare_faults(settings.text("HOROVOD_CHAOS"))
        observed.begin(job, engine, settings, _link(env, settings))
        fill(job, arguments.comm, arguments.sets)
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
    """Return a function that returns a link's measured bandwidth in bytes/s, or None if it is unknown."""

    def ask() -> float | None:
        from horovod.common.bootstrap import calibration

        if not settings.flag("HOROVOD_CALIBRATE"):
            return None
        transport = settings.text("HOROVOD_TRANSPORT")
        return calibration.link_bandwidth(calibration.World.here(env.size, env.local_size, env.cross_size, transport))

    return ask


def _ask_running(comm: Any, process_sets: Sequence[ProcessSet] | str | None) -> None:
    """Check the arguments against the running job, and assign ids to the process sets.

    Raises:
        ValueError: If the running job has other members, lacks one of the sets, or has static process sets.
    """
    arguments = check_init_arguments(comm, process_sets)
    members, sets = arguments.members, arguments.sets
    job = state.require_job()
    who = f"the job that runs for {', '.join(sorted(state.frontends))}"
    remedy = "give it to the first init of the process"
    running = list(range(job.size)) if state.members is None else state.members
    if members is not None and members != running:
        raise ValueError(f"comm is {members}, but {who} has world ranks {running}; {remedy}, or None to this one")
    if arguments.dynamic and not job.dynamic_process_sets:
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
    if arguments.comm is not None:
        global_process_set.mpi_comm = arguments.comm


def _ranks_of(entry: ProcessSet, running: list[int]) -> list[int] | None:
    """Convert the world ranks of a process set to ranks in the job.

    Return None if the set's communicator is COMM_NULL on this process, which then cannot know the members' ranks.
    If the job lacks some of the world ranks, return them unchanged, so that no registered set matches.
    """
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
    from horovod.common.bootstrap import mpi

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
    _lock = threading.RLock()  # replace the lock, because another thread might have held it during the fork
    observed.leave_in_child()
    state.leave_in_child()
    worker_env.forget_keys()
    _watch.forget()
