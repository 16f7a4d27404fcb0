"""init, shutdown and the questions about ranks and capabilities: the same for every face.

A face makes one ``HorovodBasics(face)`` and exports its methods. All faces of a process share one engine (``state``):
it starts with the first ``init`` and ends with the last ``shutdown``. A face that has shut down is out of the job,
though others may still be in it.
"""

import atexit
import os
import threading
from collections.abc import Sequence
from typing import Any

from horovod.common import descent, ending, faces, launchers, util
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
from horovod.common.steps import marks
from horovod.common.telemetry.telemetry import Telemetry

__all__ = ["HorovodBasics"]

_lock = threading.RLock()
_last: tuple[ending.Ended, list[int] | None] = None, None  # why the last engine had ended when it was left, its members


def _ended() -> ending.Ended:
    """Why the engine that runs has ended, if it has."""
    return state.engine.ended() if state.engine is not None else None


def _about() -> tuple[ending.Ended, list[int] | None]:
    return _last if state.engine is None else (_ended(), state.members)


_watch = ending.Watch(_about)
_telemetry: Telemetry | None = None  # of the job that runs


class HorovodBasics:
    """init, shutdown and the questions, for one face."""

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
        """Version code of the NCCL library found at run time, else 0."""
        return util.nccl_built()

    def ddl_built(self) -> bool:
        """False."""
        return util.ddl_built()

    def ccl_built(self) -> bool:
        """False."""
        return util.ccl_built()

    def cuda_built(self) -> bool:
        """Can a CUDA driver library be loaded?"""
        return util.cuda_built()

    def rocm_built(self) -> bool:
        """False."""
        return util.rocm_built()

    def start_timeline(self, file_path: str, mark_cycles: bool = False) -> None:
        """Writes what this rank's operations do from now on to a file that trace viewers open (docs/timeline.md): on
        rank 0 ``file_path``, on the others its name with ".rank1", ... before the suffix. A timeline that runs ends.
        ``mark_cycles``: marks where the engine gets something to do. Each rank calls it for itself, or does not.

        Raises ValueError when not initialised, and when HOROVOD_TIMELINE was not set at ``init`` (DYNAMIC: no timeline
        until this is called); OSError when the file cannot be written or another process writes it.
        """
        self._face.require_job()
        if _telemetry is None:  # a forked child knows its place, but has no job
            self._face.require_engine()
        else:
            _telemetry.timelines.start(file_path, mark_cycles)

    def stop_timeline(self) -> None:
        """Ends the timeline of this rank; its file is complete then. May be repeated; ValueError when not
        initialised."""
        self._face.require_job()
        if _telemetry is not None:
            _telemetry.timelines.stop()

    def dump(self, directory: "str | os.PathLike[str] | None" = None) -> str:
        """Writes what this rank's flight recorder has, its last operations, to ``recorder.rankN.jsonl``, and returns
        the file's path. Any thread.

        ``directory``: where to, made if it is missing; default: the job's folder in HOROVOD_REPORT_DIR.
        ``python -m horovod.recorder diff`` compares the files of several ranks.

        Raises ValueError when not initialised or where HOROVOD_RECORDER_ENTRIES is 0, HorovodInternalError in a forked
        child, OSError naming the path when it cannot be written.
        """
        self._face.require_job()
        self._face.require_engine()
        assert _telemetry is not None
        return _telemetry.dump(directory)

    def step(self) -> None:
        """A step of training ends here: for programs without a distributed optimizer, whose steps are found without
        it, or whose steps are others than the optimizer's. From the first call on only these count. All ranks call it
        equally often. ValueError when not initialised."""
        self._face.require_job()
        marks.tell()

    def stats(self) -> dict[str, Any]:
        """Where the steps of this rank went, as means since ``init`` without the first three, and on rank 0 under "job"
        those of all ranks. Times in seconds, a step each; None for what is not measured. See docs/slow.md.

        "rank", "size", "made" (steps so far), "steps" (that are counted), "step_seconds" and its parts: "data_seconds"
        (the program waited for PyTorch's DataLoader), "exposed_seconds" (it was blocked by communication, waiting for
        others included), "compute_seconds" (the rest); "hidden_seconds": collectives beside computing;
        "collective_seconds": all of them; "efficiency": share of the step that is not exposed; "bytes", "operations",
        "tensors"; "bandwidth" (bytes a second over this rank's links within collectives), "link_share" (of what a
        calibration has measured); "pauses", "paused_seconds": what was no step; "reported": values of ``report``.

        "job": the same as means over ranks, "last" ({"rank", "share", "seconds"}: who came last most often, in what
        share of steps, by how much; or None), "lately" (the last second or so), "link_bandwidth", "sentence", "ranks"
        (a list of them, each with its "late"). Others tell rank 0 about once a second.

        ValueError when not initialised.
        """
        self._face.require_job()
        found: dict[str, Any] = _account().stats()
        return found

    def report(self, **values: Any) -> None:
        """Numbers of the program's own (``hvd.report(loss=loss.item())``), for ``stats()``, the live page, the file and
        the port of figures. The last value of each name counts. Numbers of a GPU are waited for.

        Raises ValueError naming what is no number, for more than 100 names, and when not initialised.
        """
        self._face.require_job()
        _account().report(values)

    def log_stats(self, to: Any, step: int | None = None) -> None:
        """Writes figures of ``stats()``, of the job on rank 0 and of this rank on others, as scalars "horovod/...":
        ``to`` is a SummaryWriter of PyTorch, a writer of ``tf.summary``, or the module ``mlflow`` (anything with
        ``add_scalar``, ``as_default`` or ``log_metrics``). ``step``: their place, default the number of steps made.

        Raises ValueError for another ``to`` and when not initialised.
        """
        from horovod.common.telemetry import scalars

        stats = self.stats()
        scalars.send(to, scalars.scalars(stats), stats["made"] if step is None else step)

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        return self._face.require_engine().process_sets()


def _start(comm: Any, process_sets: Sequence[ProcessSet] | str | None) -> None:
    global _telemetry
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
    _telemetry = _observe(env, job, engine)
    try:
        _fill_sets(job, sets)
    except BaseException:
        _stop("hvd.init() failed")
        raise
    _install_hooks()


def _observe(env: worker_env.WorkerEnv, job: Job, engine: Any) -> Telemetry:
    from horovod.common.wiring import calibration

    settings = Settings.from_environ()

    def link() -> float | None:
        if not settings.flag("HOROVOD_CALIBRATE"):
            return None
        transport = settings.text("HOROVOD_TRANSPORT")
        return calibration.link_bandwidth(calibration.World.here(env.size, env.local_size, env.cross_size, transport))

    return Telemetry(job, engine, settings, link)


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
    global _last, _telemetry
    engine = state.engine
    if engine is None:
        return
    forget_all()
    _last = _ended(), state.members
    if _last[0] is None:
        _watch.leave(reason)
    telemetry, _telemetry = _telemetry, None
    if telemetry is not None:
        telemetry.close()
    state.stop()
    engine.shutdown(reason)
    if telemetry is not None:
        telemetry.finish()


def _stop_at_exit() -> None:
    with _lock:
        _watch.at_exit()
        _stop(_watch.reason)


def _account() -> Any:
    if _telemetry is None:  # a forked child knows its place, but has no job
        return state.require_engine()
    return _telemetry.account


_installed = False


def _install_hooks() -> None:
    global _installed
    if _installed:
        return
    _installed = True
    atexit.register(_stop_at_exit)
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    global _lock, _telemetry
    _lock = threading.RLock()  # another thread may have held it
    if _telemetry is not None:
        _telemetry.leave_in_child()
    _telemetry = None  # its threads are the parent's
    marks.close()
    state.leave_in_child()
    worker_env.forget_keys()
    _watch.forget()
