"""Process sets: groups of ranks in which collectives run independently of each other.

Set 0 holds all ranks. Others come from ``init(process_sets=[...])`` or, when sets are dynamic, from
``add_process_set``. Every rank registers every set, whether it is a member or not, in the same order.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from horovod.common.communicators import world_ranks
from horovod.common.given_sets import Sets
from horovod.common.state import Job, state
from horovod.common.util import is_mpi_comm

_registered: "dict[int, list[ProcessSet]]" = {}
"""The objects that stand for each registered set, by its id: several when faces have given one each to their init."""


class ProcessSet:
    """Ranks that form a set. Give the object to collectives once it is registered.

    ``process_set_id``: None until registered. ``ranks``: sorted ranks of the job; of a set made from a communicator
    None until ``init`` has registered it. ``mpi_comm``: that communicator. ``world_ranks``: its members, in its order.
    """

    process_set_id: int | None
    ranks: list[int] | None
    mpi_comm: Any
    world_ranks: list[int] | None

    def __init__(self, ranks_or_comm: Iterable[int] | Any) -> None:
        """``ranks_or_comm``: an iterable of distinct ranks, or an mpi4py communicator of processes of this job. Who is
        in none (COMM_NULL) gives that: each set of ``init`` is named on every rank.

        Raises ValueError for anything else, repeated or negative ranks, and a communicator outside an MPI job.
        """
        self.process_set_id = None
        self.ranks = self.mpi_comm = self.world_ranks = None
        if is_mpi_comm(ranks_or_comm):
            self.world_ranks = world_ranks(ranks_or_comm, "ProcessSet")
            self.mpi_comm = ranks_or_comm
        else:
            self.ranks = check_ranks(ranks_or_comm)

    def size(self) -> int | None:
        """Number of members; None when not registered."""
        return None if self.process_set_id is None or self.ranks is None else len(self.ranks)

    def rank(self) -> int | None:
        """This process's index within the set; None when not registered or not a member."""
        job = state.job
        if self.process_set_id is None or self.ranks is None or job is None or job.rank not in self.ranks:
            return None
        return self.ranks.index(job.rank)

    def included(self) -> bool | None:
        """Is this process a member? None while the ranks, or this process's own, are unknown."""
        return None if self.ranks is None or state.job is None else state.job.rank in self.ranks

    def _invalidate(self) -> None:
        """Forget the registration; the ranks stay, so that the object can be added again."""
        self.process_set_id = self.mpi_comm = self.world_ranks = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        # There is one global set: a function that was shipped to another rank must find that one, not a copy.
        return "global_process_set" if self is global_process_set else super().__reduce_ex__(protocol)

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"

    __repr__ = __str__


def check_ranks(ranks: Any, what: str = "ranks of a ProcessSet") -> list[int]:
    """Sorted list of the world ranks in any iterable. Raises ValueError naming ``what``, the value and what is
    accepted.
    """
    if isinstance(ranks, (str, bytes)) or not isinstance(ranks, Iterable):
        raise ValueError(
            f"{what}: a sequence of world ranks or an mpi4py communicator is accepted, not {type(ranks).__name__} "
            f"{ranks!r}"
        )
    members: list[int] = []
    for rank in ranks:
        # numpy integers and the like have __index__; booleans have it too but are surely a mistake.
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
"""All ranks; ``ranks`` is filled by ``init``."""


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Registers a set while the job runs; all ranks must call it with the same ranks, and it blocks until they do.

    Needs HOROVOD_DYNAMIC_PROCESS_SETS=1 or ``init(process_sets="dynamic")``. Raises ValueError when sets are static,
    the set exists already or has no or unknown ranks, NotImplementedError for one that was made from a communicator,
    and HorovodInternalError when ranks disagree.
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
    register(made)  # the engine looks for duplicates: all ranks have to learn of one
    return made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Unregisters a set; all ranks must call it, and it blocks until they do. False for the global or an unregistered
    set.

    The object, and every other one for this set, loses its id, and may be added again. Raises ValueError when sets are
    static, HorovodInternalError when ranks disagree.
    """
    job = state.require_job()
    engine = state.require_engine()
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"process_set: a ProcessSet is accepted, not {type(process_set).__name__} {process_set!r}")
    number = process_set.process_set_id
    if number is None or number == 0 or all(process_set is not one for one in known_as(number)):
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
    for one in known_as(number):
        one._invalidate()
    del _registered[number]
    return True


def check_new(process_set: ProcessSet, size: int) -> None:
    """Raises ValueError when the set cannot exist in a job of ``size`` ranks, naming it and why."""
    ranks = process_set.ranks
    if not ranks:
        raise ValueError(f"{process_set} has no ranks")
    if ranks[-1] >= size:
        raise ValueError(f"{process_set} has rank {ranks[-1]}, but the job's ranks are 0 to {size - 1}")


def register(process_set: ProcessSet) -> None:
    """Gives the set its id, in agreement with all ranks.

    Raises ValueError when a set with these ranks exists, HorovodInternalError when ranks disagree.
    """
    assert process_set.ranks is not None
    work = state.require_engine().add_process_set(process_set.ranks)
    work.wait()
    process_set.process_set_id = work.sizes[0]
    _registered[process_set.process_set_id] = [process_set]


def find(sought: Sequence[int] | None) -> int | None:
    """Id of the registered set with these sorted ranks, the global one aside; None when there is none."""
    known = ((number, objects[0].ranks) for number, objects in _registered.items() if number != 0)
    return next((number for number, ranks in known if ranks == sought), None)


def adopt(process_set: ProcessSet, number: int) -> None:
    """From now on the object stands for the registered set ``number`` too, which has the same ranks."""
    if all(process_set is not one for one in known_as(number)):
        process_set.process_set_id = number
        process_set.ranks = known_as(number)[0].ranks
        _registered[number].append(process_set)


def known_as(number: int) -> list[ProcessSet]:
    """The objects that stand for the registered set with this id; none where there is no such set."""
    return list(_registered.get(number, ()))


def by_id(number: int) -> ProcessSet | None:
    """The registered set with this id; None when there is none."""
    return next(iter(_registered.get(number, ())), None)


def fill(job: Job, comm: Any, sets: Sequence[ProcessSet]) -> None:
    """The job has begun: the global set, made from ``comm`` if that is a communicator, has all its ranks, and ``sets``
    are registered as the ranks have agreed. Raises ValueError naming the index of one that cannot be.
    """
    fill_global(job.size)
    global_process_set.mpi_comm = comm
    for index, (entry, agreed) in enumerate(zip(sets, job.given_sets, strict=True)):
        try:
            if entry.world_ranks is None:
                check_new(entry, job.size)
                register(entry)
            else:
                _fill_by_communicators(entry, agreed, job.rank)
        except ValueError as error:
            raise ValueError(f"process_sets[{index}]: {error}") from None


def _fill_by_communicators(entry: ProcessSet, agreed: Sets, rank: int) -> None:
    """Registers all sets at one index. The object stands for the one that has this rank, or for the only one."""
    entry.ranks = []
    for ranks in agreed:
        one = entry if rank in ranks or len(agreed) == 1 else ProcessSet(ranks)
        one.ranks = list(ranks)
        register(one)


def fill_global(size: int) -> None:
    """A job of ``size`` ranks has begun: the global set has all of them."""
    global_process_set.process_set_id = 0
    global_process_set.ranks = list(range(size))
    _registered[0] = [global_process_set]


def forget_all() -> None:
    """The job is over. The ranks of a set that the user made stay, so that the same object can be given to the next
    init."""
    for entry in [entry for objects in _registered.values() for entry in objects]:
        entry.process_set_id = None
    _registered.clear()
    global_process_set.process_set_id = 0
    global_process_set.ranks = global_process_set.mpi_comm = None
