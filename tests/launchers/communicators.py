"""Worker program of test_communicators.py: jobs from mpi4py's communicators.

`python communicators.py CASE`. Each rank prints "OK <rank of MPI.COMM_WORLD>" at its end; a failed check raises an
exception.
"""

import contextlib
import sys

import pytest
from mpi4py import MPI

from horovod.common.basics import HorovodBasics
from horovod.common.exceptions import HorovodInternalError
from horovod.common.frontends import named
from horovod.common.objects import allgather_object
from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set

hvd = HorovodBasics("benchmark")
world = MPI.COMM_WORLD


def gather(process_set=global_process_set):
    """Return world ranks by rank of the set."""
    return allgather_object(world.rank, process_set=process_set, frontend=named("benchmark"))


@contextlib.contextmanager
def refused(*parts, error=ValueError):
    with pytest.raises(error) as caught:
        yield
    assert all(part in str(caught.value) for part in parts), caught.value


def same(comm):
    """Check that the job has the ranks of the communicator."""
    assert (hvd.rank(), hvd.size()) == (comm.rank, comm.size)
    assert gather() == comm.allgather(world.rank)
    assert (global_process_set.ranks, global_process_set.mpi_comm) == (list(range(comm.size)), comm)


def world_and_splits():
    """MPI.COMM_WORLD, two concurrent jobs with reversed rank order, and a single-rank job, with MPI calls between."""
    assert hvd.mpi_enabled()
    with refused("init"):
        hvd.mpi_threads_supported()
    half = world.Split(world.rank % 2, -world.rank)
    for comm in (world, half, world.Split(0, -world.rank), MPI.COMM_SELF, world.Create_cart([world.size]), half):
        hvd.init(comm)
        same(comm)
        assert hvd.mpi_threads_supported() == (MPI.Query_thread() == MPI.THREAD_MULTIPLE)
        hvd.shutdown()
        assert global_process_set.mpi_comm is None
        assert world.allreduce(1) == world.size
    hvd.init()
    assert gather() == list(range(world.size))


def sets():
    """Process sets from each part of Split, a set that all ranks name, and one with only some ranks."""
    half = world.Split(world.rank % 2, world.rank)
    few = world.Split(0 if world.rank in (1, 2) else MPI.UNDEFINED, world.rank)
    process_sets = [ProcessSet(half), ProcessSet([0, 3]), ProcessSet(few)]
    for comm in (None, world):
        hvd.init(comm, process_sets)
        own, listed, some = process_sets
        assert own.ranks == half.allgather(world.rank)
        assert (own.rank(), own.size(), own.included()) == (half.rank, half.size, True)
        assert [one.process_set_id for one in process_sets] == [1 + world.rank % 2, 3, 4]
        assert (listed.ranks, some.ranks, some.included()) == ([0, 3], [1, 2], few != MPI.COMM_NULL)
        assert gather(own) == half.allgather(world.rank)
        if some.included():
            assert gather(some) == few.allgather(world.rank)
        assert hvd._get_process_set_ids_and_ranks() == {0: [0, 1, 2, 3], 1: [0, 2], 2: [1, 3], 3: [0, 3], 4: [1, 2]}
        with refused("DYNAMIC"):
            remove_process_set(some)
        gather()  # a rank that leaves ends the operations of all sets, even of those without it
        hvd.shutdown()
    # In a job whose ranks are not those of the world
    turned = world.Split(0, -world.rank)
    pair = turned.Split(turned.rank // 2, turned.rank)
    one = ProcessSet(pair)
    pair.Free()
    hvd.init(turned, [one])
    assert (one.ranks, one.process_set_id) == (([0, 1], 1) if world.rank > 1 else ([2, 3], 2))
    assert gather(one) == ([3, 2] if world.rank > 1 else [1, 0])
    gather()


def sets_that_cannot_be():
    half = world.Split(world.rank % 2, world.rank)
    turned = world.Split(world.rank % 2, -world.rank)
    alone = ProcessSet(MPI.COMM_SELF if world.rank == 0 else MPI.COMM_NULL)
    low = ProcessSet(world.Split(0 if world.rank < 2 else MPI.UNDEFINED))
    overlapping = ProcessSet(half) if world.rank in (0, 2) else low
    for process_sets, message in (
        ([ProcessSet(half), overlapping], ["process_sets[1]", "rank 0 ", "[0, 2]", "rank 1 ", "[0, 1]"]),
        ([alone, ProcessSet(turned)], ["process_sets[1]", "in the order of hvd.rank(), got [2, 0]"]),
        ([ProcessSet(half), ProcessSet(half)], ["process_sets[1] with ranks [0, 2] repeats process_sets[0]"]),
        ([ProcessSet([1, 3]), ProcessSet(half)], ["process_sets[1] with ranks [1, 3] repeats process_sets[0]"]),
        ([ProcessSet(MPI.COMM_NULL)], ["process_sets[0]", "COMM_NULL on all ranks"]),
        (
            [ProcessSet(half) if world.rank else ProcessSet([0, 2])],
            ["process_sets[0]", "from a communicator on rank 1"],
        ),
        ([ProcessSet(world)], ["process_sets[0]", "exists already"]),
        ([alone] * (world.rank + 1), ["1 process sets, rank 1", " 2"]),
    ):
        with refused(*message):
            hvd.init(process_sets=process_sets)
    with refused("process_sets[0]", "world ranks [0, 1]", "not in this job"):
        hvd.init(half, [ProcessSet(world.Split(world.rank // 2, world.rank))])
    with refused("comm is a list", error=NotImplementedError):
        hvd.init([0, 1, 2, 3], [ProcessSet(half)])
    hvd.init(world, "dynamic")
    same(world)
    with refused("ranks, or the set to init", error=NotImplementedError):
        add_process_set(ProcessSet(half))
    with refused("ranks, or the set to init", error=NotImplementedError):
        add_process_set(half)


def dynamic_remove():
    """With HOROVOD_DYNAMIC_PROCESS_SETS=1, a set that all ranks name can be removed; the parts of Split cannot."""
    parts = ProcessSet(world.Split(world.rank % 2, world.rank))
    some = ProcessSet(world.Split(0 if world.rank in (1, 2) else MPI.UNDEFINED, world.rank))
    hvd.init(world, [parts, some])
    assert remove_process_set(some)
    assert (some.process_set_id, some.ranks, some.mpi_comm) == (None, [1, 2], None)  # it can be added again
    assert not remove_process_set(some)
    with refused("process set", error=HorovodInternalError):
        remove_process_set(parts)
    assert gather(parts) == [world.rank % 2, world.rank % 2 + 2]
    gather()


def finalize():
    """MPI is finalized before the job shuts down, and the job before the program ends."""
    some = ProcessSet(world.Split(world.rank, 0))
    rank = world.rank
    hvd.init(MPI.COMM_WORLD, [some])
    same(world)
    MPI.Finalize()
    frontend = named("benchmark")
    assert allgather_object(rank, process_set=some, frontend=frontend) == [rank]
    assert allgather_object(rank, frontend=frontend) == [0, 1]
    with refused("after MPI_Finalize", "list of world ranks"):
        ProcessSet(world)
    hvd.shutdown()
    with refused("after MPI_Finalize"):
        hvd.init(world)
    hvd.init(process_sets=[some])
    assert hvd.rank() == rank
    assert allgather_object(rank, process_set=some, frontend=frontend) == [rank]
    assert allgather_object(rank, frontend=frontend) == [0, 1]
    assert hvd.mpi_threads_supported()
    hvd.shutdown()
    print(f"OK {rank}", flush=True)


if __name__ == "__main__":
    case = sys.argv[1]
    globals()[case]()
    if case != "finalize":
        hvd.shutdown()
        print(f"OK {world.rank}", flush=True)
