"""MPI as the transport of the job: ``HOROVOD_CPU_OPERATIONS=mpi``.

MPI is initialized before the ranks meet: if the process manager speaks PMI-1, MPI must be the one to send it "init" and
"finalize" (``handover.pmi``). MPI cannot be initialized twice, so it is finalized only at the end of the process, and
only if it was initialized here.
"""

import atexit
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from horovod.common.contract.log import make_sink
from horovod.common.contract.settings import LOG_LEVELS, Settings
from horovod.common.contract.worker_env import WorkerEnv
from horovod.common.devices import mpi_libraries
from horovod.common.devices.libraries import Missing
from horovod.common.wiring import mpi_end

if TYPE_CHECKING:
    from horovod._core import MpiInfo

OPERATIONS = "HOROVOD_CPU_OPERATIONS"
_THREADS = "HOROVOD_MPI_THREADS_DISABLE"

_begun: list["MpiInfo"] = []
_failed: list[str] = []


def wanted(settings: Settings) -> bool:
    """Return True if ranks are to communicate over MPI."""
    return settings.text(OPERATIONS) == "mpi"


def begin(env: WorkerEnv, settings: Settings) -> None:
    """Initialize MPI, or use what the program has initialized, if the settings ask for it.

    Raises:
        ValueError: If the job was not started by MPI, if the library is missing, ambiguous or does not match the
            launcher, if its thread level is too low, or if not all processes come.
    """
    if not wanted(settings):
        return
    place = env.place
    if place is None:
        raise ValueError(
            f"{OPERATIONS} must be 'gloo' unless MPI has started the job, got 'mpi' in a job of {env.size} processes; "
            "start it with mpirun, mpiexec, srun, or `horovodrun --mpi`"
        )
    from horovod import _core

    first = not _begun
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
        _begun.append(info)
        atexit.register(_finish, os.getpid(), env.rank, settings.flag("HOROVOD_LOG_HIDE_TIME"))
        text = f"MPI carries the job: {info.version} ({info.path}, {library.source}), {info.level}"
        if LOG_LEVELS.index(settings.text("HOROVOD_LOG_LEVEL")) <= LOG_LEVELS.index("info"):
            make_sink(env.rank, settings.flag("HOROVOD_LOG_HIDE_TIME"))(LOG_LEVELS.index("info"), text)
    else:
        try:  # MPI may have been finalized, or be unusable
            info = _core.mpi_start(_begun[0].path, "", False, 0.0)
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
    """Return the ranks in MPI_COMM_WORLD by rank of the job; empty if MPI is not used.

    Raises:
        ValueError: If other ranks use MPI and this one has not initialized it.
    """
    if not wanted(settings) or len(world_ranks) == 1:
        return []
    if settings.flag("HOROVOD_ENCRYPT_DATA"):
        raise ValueError(f"HOROVOD_ENCRYPT_DATA must be 0 if {OPERATIONS} is 'mpi', got 1; MPI does not encrypt")
    if not _begun:
        raise ValueError(f"{OPERATIONS} is 'mpi' on rank 0 of the job, but not on this rank; give all the same")
    return list(world_ranks)


def info() -> "MpiInfo | None":
    """Return information on the MPI initialized in this process, or None."""
    return _begun[0] if _begun else None


def engine_ends(lost: str | None) -> None:
    """Prepare for the end of MPI before the job's engine is shut down.

    Args:
        lost: Why the job has ended, if a rank is gone; MPI_Finalize would wait for that rank.
    """
    if not _begun:
        return
    if lost is not None:
        _failed.append(lost)
    else:
        mpi_end.keep()


def _finish(pid: int, rank: int, hide_time: bool) -> None:
    # After an exception, MPI must not be finalized: the launcher then ends the other processes.
    if os.getpid() != pid or _failed or hasattr(sys, "last_type"):
        return
    from horovod import _core

    sink = make_sink(rank, hide_time)
    if not mpi_end.finish(_core.mpi_finish, lambda text: sink(LOG_LEVELS.index("warning"), text)):
        mpi_end.leave()
