"""Convert mpi4py communicators to world ranks, and combine the process sets that ranks pass to ``init``.

This module does not import mpi4py, because a caller that passes a communicator has already imported it. All MPI calls
are local. So no call waits for other ranks, and each member detects an invalid communicator by itself.

A process set can be a list of ranks or a communicator. A list must be the same on all ranks, but each rank passes its
own communicator. After ``comm.Split``, ranks pass different communicators at the same index, and a rank in none of them
passes COMM_NULL. Every rank registers all sets of an index, ordered by their first ranks.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from horovod.common.contract.worker_env import WorkerEnv

_STARTERS = "mpirun, mpiexec or 'srun --mpi=pmix'"


def world_ranks(comm: Any, what: str) -> list[int]:
    """Return the world ranks in an mpi4py communicator, in the communicator's order, or an empty list for COMM_NULL.

    Args:
        comm: The communicator.
        what: Name of the argument for error messages.

    Raises:
        ValueError: If MPI did not start this job, if MPI is not running in this process, if ``comm`` is an
            intercommunicator, or if some members belong to another job.
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
        # Call Translate_ranks through the class, which works in mpi4py 3 (class method) and mpi4py 4 (method).
        ranks = list(mpi.Group.Translate_ranks(group, list(range(group.Get_size())), world))
    finally:
        group.Free()
        world.Free()
    others = ranks.count(mpi.UNDEFINED)
    if others:
        raise ValueError(
            f"{what} must be a communicator of processes that were started together, got one in which {others} of "
            f"{len(ranks)} processes belong to another job (they are not in MPI.COMM_WORLD)"
        )
    return ranks


def threads() -> bool | None:
    """Return True if any thread of this process can call MPI, or None if mpi4py has not initialized MPI."""
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
    """Raise ValueError unless MPI.COMM_WORLD has the same processes and ranks as this job."""
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
    here, place = (world.Get_rank(), world.Get_size()), (env.rank, env.size)
    if here == place:  # without a launcher, MPI and Horovod both report rank 0 and size 1
        return
    who = "HOROVOD_RANK and HOROVOD_SIZE say" if env.place is None else f"{env.place.launcher} says"
    name, version = mpi.get_vendor()
    raise ValueError(
        f"{what}: in MPI.COMM_WORLD this process is rank {here[0]} of {here[1]}, but {who} that it is rank {place[0]} "
        f"of {place[1]}. Pass a list of world ranks, or start the job with {_STARTERS} of the MPI that mpi4py uses "
        f"(here {name} {'.'.join(map(str, version))})"
    )


class SetSpec(msgspec.Struct, array_like=True, frozen=True):
    """One element of the ``process_sets`` argument that a rank passes to ``init``."""

    ranks: list[int]
    """Sorted ranks of the job. A set made from a communicator has world ranks in its order, none for COMM_NULL."""
    by_communicator: bool = False


Sets = tuple[tuple[int, ...], ...]
"""Sorted ranks of the job for each set that results from one index."""
Name = Callable[[int], str]
"""Function that returns the name of a rank for messages."""


def agree_on_sets(requested: Sequence[Sequence[SetSpec]], world: Sequence[int], name: Name) -> tuple[Sets, ...]:
    """Combine the ranks' process sets into the sets to register.

    Args:
        requested: Sets that each rank of the job has passed, by rank.
        world: World rank of each rank of the job.
        name: Function that returns the name of a rank for messages.

    Returns:
        The sets to register for each entry of ``process_sets``.

    Raises:
        ValueError: If the ranks disagree, on all ranks. The message names the index, the ranks and the difference.
    """
    first = requested[0]
    for rank, row in enumerate(requested):
        if len(row) != len(first):
            raise ValueError(f"{name(0)} gave init {len(first)} process sets, {name(rank)} {len(row)}")
    agreed: list[Sets] = []
    seen: dict[tuple[int, ...], int] = {}
    for index in range(len(first)):
        sets = _at(index, [row[index] for row in requested], world, name)
        for ranks in sets:
            if ranks in seen:
                raise ValueError(f"process_sets[{index}] with ranks {list(ranks)} repeats process_sets[{seen[ranks]}]")
        seen.update(dict.fromkeys(sets, index))
        agreed.append(sets)
    return tuple(agreed)


def _at(index: int, column: Sequence[SetSpec], world: Sequence[int], name: Name) -> Sets:
    first = column[0]
    for rank, theirs in enumerate(column):
        if theirs.by_communicator != first.by_communicator:
            kinds = [f"made from {'a communicator' if one.by_communicator else 'ranks'}" for one in (first, theirs)]
            raise ValueError(f"process_sets[{index}] is {kinds[0]} on {name(0)} but {kinds[1]} on {name(rank)}")
        if not first.by_communicator and theirs.ranks != first.ranks:
            raise ValueError(
                f"process_sets[{index}] has ranks {first.ranks} on {name(0)} but {theirs.ranks} on {name(rank)}"
            )
    if not first.by_communicator:
        return (tuple(first.ranks),)
    return _of_communicators(index, [one.ranks for one in column], world, name)


def _of_communicators(index: int, column: Sequence[list[int]], world: Sequence[int], name: Name) -> Sets:
    what = f"process_sets[{index}]"
    rank_of = {number: rank for rank, number in enumerate(world)}
    givers: dict[tuple[int, ...], list[int]] = {}
    for rank, theirs in enumerate(column):
        if theirs:
            givers.setdefault(tuple(theirs), []).append(rank)
    if not givers:
        raise ValueError(f"{what} must be a communicator on at least one rank, got COMM_NULL on all ranks")
    sets = []
    for numbers, who in givers.items():
        unknown = [number for number in numbers if number not in rank_of]
        if unknown:
            raise ValueError(
                f"{what} must be a communicator within the communicator passed to init, got one on {name(who[0])} with "
                f"world ranks {list(numbers)}, of which {unknown} are not in this job"
            )
        ranks = [rank_of[number] for number in numbers]
        apart = sorted(set(ranks) ^ set(who))
        if apart:
            other = [rank_of.get(number, number) for number in column[apart[0]]]
            raise ValueError(
                f"{what}: the communicator of {name(who[0])} has ranks {ranks}, but {name(apart[0])} gives one with "
                f"{f'ranks {other}' if other else 'none, COMM_NULL'}; communicators must not overlap, and all ranks of "
                "one must pass it"
            )
        if ranks != sorted(ranks):
            raise ValueError(
                f"{what}: ranks of a communicator must be in the order of hvd.rank(), got {ranks} on {name(who[0])}; "
                "pass hvd.rank(), or the same number on all ranks, to Split as key"
            )
        sets.append(tuple(ranks))
    return tuple(sets)
