"""Checks of the arguments of ``init`` that one rank can make alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from horovod.common.communicators import world_ranks
from horovod.common.given_sets import GivenSet
from horovod.common.process_sets import ProcessSet, check_ranks
from horovod.common.util import is_mpi_comm


@dataclass(frozen=True)
class Arguments:
    """Arguments that this rank has passed to ``init``."""

    members: list[int] | None
    """World ranks that form the job, in the order of their ranks in it; None: all."""
    comm: Any
    """The communicator given as ``comm``, or None."""
    sets: Sequence[ProcessSet]
    dynamic: bool

    def given(self) -> list[GivenSet]:
        """Return the process sets in the form in which ranks exchange them."""
        return [
            GivenSet(one.ranks or []) if one.world_ranks is None else GivenSet(one.world_ranks, by_communicator=True)
            for one in self.sets
        ]


def check(comm: Any, process_sets: Any) -> Arguments:
    """Return the checked arguments.

    Raises:
        ValueError: If an argument is invalid; names argument, value and what is accepted.
        NotImplementedError: If sets are made from communicators in a job formed by a list of ranks.
    """
    by_communicator = is_mpi_comm(comm)
    members = _members(comm) if by_communicator else None if comm is None else check_ranks(comm, "comm") or None
    sets, dynamic = _sets(process_sets)
    if members is not None and not by_communicator:
        for index, entry in enumerate(sets):
            if entry.world_ranks is not None:
                raise NotImplementedError(
                    f"process_sets[{index}] is made from an MPI communicator, and comm is a list of ranks; give a "
                    "communicator as comm too, or ranks to the ProcessSet"
                )
    return Arguments(members, comm if by_communicator else None, sets, dynamic)


def _members(comm: Any) -> list[int]:
    ranks = world_ranks(comm, "comm")
    if not ranks:
        raise ValueError(
            "comm is MPI.COMM_NULL: this process is no member of the communicator, or it was freed. Only the "
            "members of a communicator call init with it"
        )
    return ranks


def _sets(process_sets: Any) -> tuple[list[ProcessSet], bool]:
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(f"process_sets must be None, a list of ProcessSet, or 'dynamic', got {process_sets!r}")
        return [], True
    sets = [] if process_sets is None else list(process_sets)
    seen: dict[tuple[int, ...], int] = {}
    for index, entry in enumerate(sets):
        if not isinstance(entry, ProcessSet):
            raise ValueError(f"process_sets[{index}] must be a ProcessSet, got {entry!r}")
        if entry.world_ranks is not None:
            continue  # other ranks have different sets here; repetitions are found when all ranks have exchanged theirs
        ranks = tuple(entry.ranks or ())
        if ranks in seen:
            raise ValueError(f"process_sets[{index}] with ranks {list(ranks)} repeats process_sets[{seen[ranks]}]")
        seen[ranks] = index
    return sets, False
