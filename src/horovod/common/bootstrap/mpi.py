"""MPI as the job's transport (``HOROVOD_CPU_OPERATIONS=mpi``).

MPI is initialized before the rendezvous, because a process manager with PMI-1 expects "init" and "finalize" from MPI
itself (``key_exchange.pmi``). Because MPI cannot be initialized twice, it is finalized only when the process exits,
and only if this module has initialized it.

MPI_Finalize waits for all processes of the job and cannot be interrupted. It can take arbitrarily long: for example,
another rank might write a file for an hour before its process exits. So the wait has no timeout but ends when another
process is gone. To detect that, this module duplicates the control connections to the neighbors in the tree of ranks
and keeps them open until the process exits. The kernel closes the other end when its process dies. A process that has
completed MPI_Finalize also closes its connections, so a grace period separates the two cases.
"""

import atexit
import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from horovod.common.contract.log import make_sink
from horovod.common.contract.settings import LOG_LEVELS, Settings
from horovod.common.contract.worker_env import WorkerEnv
from horovod.common.devices import mpi_libraries
from horovod.common.devices.libraries import Missing

if TYPE_CHECKING:
    from horovod._core import MpiInfo

GRACE = 10.0
"""Seconds in which MPI_Finalize must return after a neighbor's process has exited, whether it has completed or died."""
WARN_AFTER = 60.0
"""Seconds to wait for live processes before logging a message."""
_SLICE = 0.2  # seconds between checks for lost processes

_links: list[tuple[str, int]] = []
_duplicates: list[tuple[str, int]] = []


def note_links(links: Iterable[tuple[str, int]]) -> None:
    """Register the control connections of a starting engine.

    Args:
        links: For each connection, the label of the rank at its other end and the file descriptor. The engine owns the
        descriptor.
    """
    _links[:] = links


def keep_links() -> None:
    """Duplicate a stopping engine's control connections, to detect lost peers during MPI_Finalize."""
    _close_links()
    for label, descriptor in _links:
        with contextlib.suppress(OSError):  # if no descriptor is free, only the launcher detects lost ranks
            _duplicates.append((label, os.dup(descriptor)))
    _links.clear()


def lost_peer(connections: Iterable[tuple[str, int]]) -> str | None:
    """Return the label of a rank that has closed its connection, even if data is still unread, or None."""
    connections = list(connections)
    poll = select.poll()
    for _, descriptor in connections:
        poll.register(descriptor, select.POLLRDHUP)
    closed = {descriptor for descriptor, _ in poll.poll(0)}
    return next((label for label, descriptor in connections if descriptor in closed), None)


def wait_for_finalize(ended: Callable[[float], bool], log: Callable[[str], None]) -> bool:
    """Wait for MPI_Finalize to return, and log a message if it takes long.

    Args:
        ended: Function that waits for MPI_Finalize up to the given seconds, and returns True once it has returned.
        log: Function that logs a warning.

    Returns:
        False if MPI_Finalize cannot return because a peer's process is gone. The loss has been logged.
    """
    start = time.monotonic()
    lost: tuple[str, float] | None = None
    reported = False
    while not ended(_SLICE):
        now = time.monotonic()
        if lost is None and (label := lost_peer(_duplicates)) is not None:
            lost = label, now
        if lost is not None and now - lost[1] > GRACE:
            log(
                f"MPI_Finalize waits for all processes of the job, but {lost[0]} has ended without it, or before the "
                f"others; this process has given it {GRACE:g} s and ends now, with exit code 1"
            )
            return False
        if lost is None and not reported and now - start > WARN_AFTER:
            reported = True
            log(f"MPI_Finalize has waited for {WARN_AFTER:g} s for other processes of the job, which are still running")
    _close_links()
    return True


def exit_at_once() -> None:
    """Exit while MPI_Finalize is still running. Exit handlers are skipped, because they could interfere with it."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(1)


def _close_links() -> None:
    for _, descriptor in _duplicates:
        os.close(descriptor)
    _duplicates.clear()


os.register_at_fork(after_in_child=_close_links)


OPERATIONS = "HOROVOD_CPU_OPERATIONS"
_THREADS = "HOROVOD_MPI_THREADS_DISABLE"

_instances: list["MpiInfo"] = []
_failed: list[str] = []


def is_selected(settings: Settings) -> bool:
    """Return True if the settings select MPI for communication."""
    return settings.text(OPERATIONS) == "mpi"


def begin(env: WorkerEnv, settings: Settings) -> None:
    """Initialize MPI if the settings select it and the program has not initialized it already.

    Raises:
        ValueError: If MPI did not start the job, if the library is missing, ambiguous or does not match the launcher,
            if its thread level is too low, or if some processes do not arrive.
    """
    if not is_selected(settings):
        return
    place = env.place
    if place is None:
        raise ValueError(
            f"{OPERATIONS} must be 'gloo' unless MPI has started the job, got 'mpi' in a job of {env.size} processes; "
            "start it with mpirun, mpiexec, srun, or `horovodrun --mpi`"
        )
    from horovod import _core

    first = not _instances
    if first:
        library = mpi_libraries.find(os.environ, place.launcher)
        if isinstance(library, Missing):
            raise ValueError(f"{OPERATIONS} is 'mpi', but no MPI library is found: {library.reason}")
        one_thread = settings.flag(_THREADS)
        try:
            info = _core.mpi_start(
                library.path, mpi_libraries.maker(place.launcher), one_thread, settings.number("HOROVOD_START_TIMEOUT")
            )
        except ValueError as error:
            raise ValueError(f"{OPERATIONS} is 'mpi': {error} (library: {library.path}, {library.source})") from None
        _instances.append(info)
        atexit.register(_finish, os.getpid(), env.rank, settings.flag("HOROVOD_LOG_HIDE_TIME"))
        text = f"MPI carries the job: {info.version} ({info.path}, {library.source}), {info.level}"
        if LOG_LEVELS.index(settings.text("HOROVOD_LOG_LEVEL")) <= LOG_LEVELS.index("info"):
            make_sink(env.rank, settings.flag("HOROVOD_LOG_HIDE_TIME"))(LOG_LEVELS.index("info"), text)
    else:
        try:  # mpi_start raises an error if MPI has already been finalized
            info = _core.mpi_start(_instances[0].path, "", False, 0.0)
        except Exception as error:
            raise ValueError(f"{OPERATIONS} is 'mpi': {error}") from None
    if (info.rank, info.size) != (place.rank, place.size):
        raise ValueError(
            f"{place.launcher} has started this process as rank {place.rank} of {place.size}, but to {info.version} "
            f"({info.path}) it is rank {info.rank} of {info.size}: the launcher is of another MPI than the library; "
            f"start the job with the mpirun of {info.version}, or give the launcher's library as "
            f"{mpi_libraries.VARIABLE}"
        )


def ranks(settings: Settings, world_ranks: Sequence[int]) -> list[int]:
    """Return the rank in MPI_COMM_WORLD of each rank of the job, or an empty list if MPI is not used.

    Raises:
        ValueError: If other ranks use MPI and this one has not initialized it.
    """
    if not is_selected(settings) or len(world_ranks) == 1:
        return []
    if settings.flag("HOROVOD_ENCRYPT_DATA"):
        raise ValueError(f"HOROVOD_ENCRYPT_DATA must be 0 if {OPERATIONS} is 'mpi', got 1; MPI does not encrypt")
    if not _instances:
        raise ValueError(f"{OPERATIONS} is 'mpi' on rank 0 of the job, but not on this rank; give all the same")
    return list(world_ranks)


def info() -> "MpiInfo | None":
    """Return the properties of the running MPI library, or None if this module has not initialized MPI."""
    return _instances[0] if _instances else None


def engine_ends(lost: str | None) -> None:
    """Prepare for MPI_Finalize. Call this before the job's engine is shut down.

    Args:
        lost: If a rank was lost, the reason why the job ended, else None. After a loss, MPI_Finalize is skipped,
        because it would wait for the lost rank.
    """
    if not _instances:
        return
    if lost is not None:
        _failed.append(lost)
    else:
        keep_links()


def _finish(pid: int, rank: int, hide_time: bool) -> None:
    # After an exception, do not finalize MPI, so that the launcher ends the other processes.
    if os.getpid() != pid or _failed or hasattr(sys, "last_type"):
        return
    from horovod import _core

    sink = make_sink(rank, hide_time)
    if not wait_for_finalize(_core.mpi_finish, lambda text: sink(LOG_LEVELS.index("warning"), text)):
        exit_at_once()
