"""Process sets: groups of ranks whose collectives run independently of each other.

Set 0 contains all ranks. A program passes other sets to ``init(process_sets=[...])`` or, if sets are dynamic, to
``add_process_set``. Every rank registers all sets in the same order, including sets of which it is not a member.

The module also performs the checks of ``init``'s arguments that a single rank can do.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from horovod.common.communicators import Sets, SetSpec, world_ranks
from horovod.common.frontends import Job, state
from horovod.common.util import is_mpi_comm

_registered: "dict[int, list[ProcessSet]]" = {}
"""ProcessSet objects by the id of their set. There are several if several frontends passed one to ``init``."""


class ProcessSet:
    """Group of ranks that can be passed to collectives once it is registered.

    Attributes:
        process_set_id: Id of the set, or None until it is registered.
        ranks: The members' ranks in the job, sorted. None for a set made from a communicator until ``init`` has
        registered it.
        mpi_comm: mpi4py communicator from which the set was made, or None.
        world_ranks: World ranks of the communicator's members, in the communicator's order, or None.
    """

    process_set_id: int | None
    ranks: list[int] | None
    mpi_comm: Any
    world_ranks: list[int] | None

    def __init__(self, ranks_or_comm: Iterable[int] | Any) -> None:
        """Create an unregistered process set.

        Args:
            ranks_or_comm: Distinct ranks, or an mpi4py communicator of processes of this job. Every rank must pass each
                set to ``init``. If a process is in none of the communicators that the ranks pass at the same index, it
                passes COMM_NULL.

        Raises:
            ValueError: If the argument is anything else, if a rank is negative or repeated, or if a communicator is
                used outside an MPI job.
        """
        self.process_set_id = None
        self.ranks = self.mpi_comm = self.world_ranks = None
        if is_mpi_comm(ranks_or_comm):
            self.world_ranks = world_ranks(ranks_or_comm, "ProcessSet")
            self.mpi_comm = ranks_or_comm
        else:
            self.ranks = check_ranks(ranks_or_comm)

    def size(self) -> int | None:
        """Return the number of members, or None if the set is not registered."""
        return None if self.process_set_id is None or self.ranks is None else len(self.ranks)

    def rank(self) -> int | None:
        """Return this process's index within the set.

        The result is None if the set is not registered or does not include this process.
        """
        job = state.job
        if self.process_set_id is None or self.ranks is None or job is None or job.rank not in self.ranks:
            return None
        return self.ranks.index(job.rank)

    def included(self) -> bool | None:
        """Return True if this process is a member.

        The result is None while the set's ranks or this process's rank is unknown.
        """
        return None if self.ranks is None or state.job is None else state.job.rank in self.ranks

    def _invalidate(self) -> None:
        """Drop the id but keep the ranks, so that the set can be registered again."""
        self.process_set_id = self.mpi_comm = self.world_ranks = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Pickle the global set by reference, so that a function sent to another rank uses that rank's global set.
        return "global_process_set" if self is global_process_set else super().__reduce_ex__(protocol)

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"

    __repr__ = __str__


def check_ranks(ranks: Any, what: str = "ranks of a ProcessSet") -> list[int]:
    """Check a collection of world ranks, and return it as a sorted list.

    Args:
        ranks: Any iterable of integers.
        what: Name of the argument for error messages.

    Raises:
        ValueError: If ``ranks`` is not an iterable of distinct integers of 0 or more.
    """
    if isinstance(ranks, (str, bytes)) or not isinstance(ranks, Iterable):
        raise ValueError(
            f"{what} must be a sequence of world ranks or an mpi4py communicator, got {type(ranks).__name__} {ranks!r}"
        )
    members: list[int] = []
    for rank in ranks:
        # ``__index__`` accepts NumPy integers. Reject booleans, which ``__index__`` would accept.
        if isinstance(rank, bool) or not hasattr(rank, "__index__"):
            raise ValueError(f"{what}: world ranks are integers, not {type(rank).__name__} {rank!r}")
        members.append(rank.__index__())
    members.sort()
    if len(set(members)) != len(members):
        raise ValueError(f"{what}: {members} names a rank twice")
    if members and members[0] < 0:
        raise ValueError(f"{what}: {members} has a negative rank")
    return members


def _make_global() -> ProcessSet:
    made = ProcessSet([])
    made.process_set_id = 0
    made.ranks = None
    return made


global_process_set = _make_global()
"""Process set of all ranks. ``init`` sets its ``ranks``."""


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a process set while the job is running.

    All ranks must call this with the same ranks. Each call blocks until all ranks have called. The program must set
    HOROVOD_DYNAMIC_PROCESS_SETS=1 or call ``init(process_sets="dynamic")``.

    Args:
        process_set: The set, or its ranks.

    Returns:
        The registered set.

    Raises:
        ValueError: If not initialized, if process sets are static, or if the set already exists, is empty or has
            unknown ranks.
        NotImplementedError: If the set was made from a communicator.
        HorovodInternalError: If ranks disagree.
    """
    job = state.require_job()
    state.require_engine()
    if is_mpi_comm(process_set) or getattr(process_set, "world_ranks", None) is not None:
        raise NotImplementedError(
            "adding a process set made from an MPI communicator is not supported: give ranks, or the set to init"
        )
    if not job.dynamic_process_sets:
        raise ValueError(
            "process sets cannot be added after init: set HOROVOD_DYNAMIC_PROCESS_SETS=1 or call "
            "init(process_sets='dynamic')"
        )
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    check_new(made, job.size)
    register(made)  # let the engine reject duplicates, so that all ranks raise the error
    return made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Unregister a process set.

    All ranks must call this. Each call blocks until all ranks have called. All ProcessSet objects for this set lose
    their ids and can be added again.

    Returns:
        True if the set was removed. False for the global set and for sets that are not registered.

    Raises:
        ValueError: If not initialized, if process sets are static, or if the argument is not a ProcessSet.
        HorovodInternalError: If ranks disagree.
    """
    job = state.require_job()
    engine = state.require_engine()
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"process_set must be a ProcessSet, got {type(process_set).__name__} {process_set!r}")
    number = process_set.process_set_id
    if number is None or number == 0 or all(process_set is not one for one in _sets_with_id(number)):
        return False
    if not job.dynamic_process_sets:
        raise ValueError(
            "process sets cannot be removed after init: set HOROVOD_DYNAMIC_PROCESS_SETS=1 or call "
            "init(process_sets='dynamic')"
        )
    work = engine.remove_process_set(number)
    work.wait()
    if not work.sizes[0]:
        return False
    for one in _sets_with_id(number):
        one._invalidate()
    del _registered[number]
    return True


def check_new(process_set: ProcessSet, size: int) -> None:
    """Raise ValueError if the set is invalid in a job of ``size`` ranks."""
    ranks = process_set.ranks
    if not ranks:
        raise ValueError(f"{process_set} has no ranks")
    if ranks[-1] >= size:
        raise ValueError(f"{process_set} has rank {ranks[-1]}, but the job's ranks are 0 to {size - 1}")


def register(process_set: ProcessSet) -> None:
    """Register the set on all ranks, and store its id in the object.

    Raises:
        ValueError: If a set with the same ranks exists.
        HorovodInternalError: If ranks disagree.
    """
    assert process_set.ranks is not None
    work = state.require_engine().add_process_set(process_set.ranks)
    work.wait()
    process_set.process_set_id = work.sizes[0]
    _registered[process_set.process_set_id] = [process_set]


def register_as(ranks: Sequence[int], number: int) -> int:
    """Store the id that the engine has assigned to a set, and return the id."""
    made = ProcessSet(ranks)
    made.process_set_id = number
    _registered[number] = [made]
    return number


def find(requested: Sequence[int] | None) -> int | None:
    """Return the id of the registered set with these sorted ranks, or None. The global set is ignored."""
    known = ((number, objects[0].ranks) for number, objects in _registered.items() if number != 0)
    return next((number for number, ranks in known if ranks == requested), None)


def adopt(process_set: ProcessSet, number: int) -> None:
    """Assign the id of a registered set to a ProcessSet object with the same ranks."""
    if all(process_set is not one for one in _sets_with_id(number)):
        process_set.process_set_id = number
        process_set.ranks = _sets_with_id(number)[0].ranks
        _registered[number].append(process_set)


def _sets_with_id(number: int) -> list[ProcessSet]:
    """Return all ProcessSet objects for the registered set with this id. The list is empty if there is none."""
    return list(_registered.get(number, ()))


def by_id(number: int) -> ProcessSet | None:
    """Return a ProcessSet object for the registered set with this id, or None if there is none."""
    return next(iter(_registered.get(number, ())), None)


def fill(job: Job, comm: Any, sets: Sequence[ProcessSet]) -> None:
    """Initialize the global set and register ``sets`` when a job begins.

    Args:
        job: The job, with the ranks on which all ranks agree for each set.
        comm: The communicator that was passed to ``init``, or None. It becomes ``mpi_comm`` of the global set.
        sets: The sets that were passed to ``init``.

    Raises:
        ValueError: If a set is invalid. The message names its index.
    """
    fill_global(job.size)
    global_process_set.mpi_comm = comm
    for index, (entry, agreed) in enumerate(zip(sets, job.requested_sets, strict=True)):
        try:
            if entry.world_ranks is None:
                check_new(entry, job.size)
                register(entry)
            else:
                _fill_by_communicators(entry, agreed, job.rank)
        except ValueError as error:
            raise ValueError(f"process_sets[{index}]: {error}") from None


def _fill_by_communicators(entry: ProcessSet, agreed: Sets, rank: int) -> None:
    """Register the process sets for one entry of ``process_sets`` in which ranks passed communicators.

    ``entry`` is the object that this rank passed. It becomes the set that contains this rank.
    """
    entry.ranks = []
    for ranks in agreed:
        one = entry if rank in ranks or len(agreed) == 1 else ProcessSet(ranks)
        one.ranks = list(ranks)
        register(one)


def fill_global(size: int) -> None:
    """Make the global set contain all ranks of a job of ``size`` ranks."""
    global_process_set.process_set_id = 0
    global_process_set.ranks = list(range(size))
    _registered[0] = [global_process_set]


def forget_all() -> None:
    """Unregister all sets when the job ends.

    Sets that the user has created keep their ranks, so that the same objects can be passed to the next ``init``.
    """
    for entry in [entry for objects in _registered.values() for entry in objects]:
        entry.process_set_id = None
    _registered.clear()
    global_process_set.process_set_id = 0
    global_process_set.ranks = global_process_set.mpi_comm = None


@dataclass(frozen=True)
class InitArguments:
    """Arguments that this rank has passed to ``init``."""

    members: list[int] | None
    """World ranks that form the job, in the order of their ranks in the job, or None for all world ranks."""
    comm: Any
    """Communicator passed to ``init`` as ``comm``, or None."""
    sets: Sequence[ProcessSet]
    dynamic: bool

    def specs(self) -> list[SetSpec]:
        """Return the process sets as ``GivenSet`` objects, which ranks send to each other."""
        return [
            SetSpec(one.ranks or []) if one.world_ranks is None else SetSpec(one.world_ranks, by_communicator=True)
            for one in self.sets
        ]


def check_init_arguments(comm: Any, process_sets: Any) -> InitArguments:
    """Check the arguments of ``init``, but not whether they agree across ranks.

    Raises:
        ValueError: If an argument is invalid. The message names the argument, its value and the accepted values.
        NotImplementedError: If process sets are given as communicators but the job is given as a list of ranks.
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
    return InitArguments(members, comm if by_communicator else None, sets, dynamic)


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
            # Ranks can pass different communicators at this index, so a duplicate can be detected only after the
            # ranks have exchanged their sets.
            continue
        ranks = tuple(entry.ranks or ())
        if ranks in seen:
            raise ValueError(f"process_sets[{index}] with ranks {list(ranks)} repeats process_sets[{seen[ranks]}]")
        seen[ranks] = index
    return sets, False
