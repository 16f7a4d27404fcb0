"""Conversion of mpi4py communicators to world ranks of this job.

mpi4py is never imported here: a caller that has a communicator has loaded it. All MPI calls are local, so none waits
for other ranks, and an invalid communicator is detected on all its members.
"""

import sys
from typing import Any

from horovod.common.contract.worker_env import WorkerEnv

_STARTERS = "mpirun, mpiexec or 'srun --mpi=pmix'"


def world_ranks(comm: Any, what: str) -> list[int]:
    """Return the world ranks of an mpi4py communicator's members, by their rank in it; empty for COMM_NULL.

    Args:
        comm: The communicator.
        what: Name of the argument for error messages.

    Raises:
        ValueError: If MPI did not start this job or is not initialized or already finalized here, for an
            intercommunicator, and if members belong to another job.
    """
    mpi = _running(what)
    _check_world(mpi, what)
    if comm == mpi.COMM_NULL:
        return []
    if comm.Is_inter():
        raise ValueError(
            f"{what} must be a communicator with one group of processes, got an intercommunicator, which has two; call "
            "its Merge() first"
        )
    group, world = comm.Get_group(), mpi.COMM_WORLD.Get_group()
    try:
        # Called through the class, because it is a class method in mpi4py 3 and a method of the group in mpi4py 4.
        ranks = list(mpi.Group.Translate_ranks(group, list(range(group.Get_size())), world))
    finally:
        group.Free()
        world.Free()
    strangers = ranks.count(mpi.UNDEFINED)
    if strangers:
        raise ValueError(
            f"{what} must be a communicator of processes that were started together, got one in which {strangers} of "
            f"{len(ranks)} processes belong to another job (they are not in MPI.COMM_WORLD)"
        )
    return ranks


def threads() -> bool | None:
    """Return True if MPI allows all threads of this process to call it; None if mpi4py has not initialized MPI."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return None
    return bool(mpi.Query_thread() >= mpi.THREAD_MULTIPLE)


def _running(what: str) -> Any:
    """Return the mpi4py.MPI module, or raise ValueError if MPI is not running in this process."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None:
        raise ValueError(
            f"{what} must be a list of world ranks, got an MPI communicator, but mpi4py.MPI is not loaded in this "
            f"process; communicators of mpi4py can be used in a job started by {_STARTERS}"
        )
    if mpi.Is_finalized():
        raise ValueError(f"{what} must be a list of world ranks after MPI_Finalize, got an MPI communicator")
    if not mpi.Is_initialized():
        raise ValueError(f"{what}: an MPI communicator is given before MPI_Init; call mpi4py.MPI.Init() first")
    return mpi


def _check_world(mpi: Any, what: str) -> None:
    """Raise ValueError unless MPI.COMM_WORLD consists of the processes of this job with the same ranks."""
    if mpi.Comm.Get_parent() != mpi.COMM_NULL:
        raise ValueError(
            f"{what} must be a communicator of processes that {_STARTERS} has started, got one in a process that "
            "MPI_Comm_spawn has started, whose rank the launcher does not know"
        )
    env = WorkerEnv.from_environ()
    if env.worker is not None:
        raise ValueError(
            f"{what} must be a list of ranks in an elastic job, whose ranks change, got an MPI communicator"
        )
    world = mpi.COMM_WORLD
    here, told = (world.Get_rank(), world.Get_size()), (env.rank, env.size)
    if here == told:  # also true for a process started without a launcher, for which MPI creates a world of size one
        return
    who = "HOROVOD_RANK and HOROVOD_SIZE say" if env.place is None else f"{env.place.launcher} says"
    name, version = mpi.get_vendor()
    raise ValueError(
        f"{what}: in MPI.COMM_WORLD this process is rank {here[0]} of {here[1]}, but {who} that it is rank {told[0]} "
        f"of {told[1]}. Pass a list of world ranks, or start the job with {_STARTERS} of the MPI that mpi4py uses "
        f"(here {name} {'.'.join(map(str, version))})"
    )
