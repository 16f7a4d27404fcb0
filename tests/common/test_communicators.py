"""Communicators, with a fake of mpi4py's objects; tests/launchers uses real ones."""

import sys

import pytest

from horovod.common import communicators, process_sets
from horovod.common.basics import HorovodBasics
from horovod.common.process_sets import ProcessSet, global_process_set
from tests.common import fake_mpi


def environment(monkeypatch, rank, size):
    for name in ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_WORKER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", str(rank))
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", str(size))


@pytest.fixture
def mpi(monkeypatch):
    """Rank 1 of 4, under mpirun."""
    environment(monkeypatch, 1, 4)
    module = fake_mpi.Module(1, 4)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)
    return module


@pytest.fixture
def alone(monkeypatch):
    """A process without a launcher, in which mpi4py has a world of one."""
    environment(monkeypatch, 0, 1)
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK")
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE")
    module = fake_mpi.Module(0, 1)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)
    return module


def test_ranks_are_world_ranks_in_communicator_order(mpi):
    assert communicators.world_ranks(mpi.COMM_WORLD, "comm") == [0, 1, 2, 3]
    assert communicators.world_ranks(mpi.comm(3, 1), "comm") == [3, 1]
    assert communicators.world_ranks(mpi.COMM_NULL, "comm") == []


def refused(mpi, comm, *parts):
    for use in (lambda: process_sets.check_init_arguments(comm, None), lambda: ProcessSet(comm)):
        with pytest.raises(ValueError, match=r"must be|first|Pass") as caught:
            use()
        assert all(part in str(caught.value) for part in parts), caught.value
        assert str(caught.value).startswith(("comm", "ProcessSet"))


def test_an_intercommunicator(mpi):
    refused(mpi, fake_mpi.Comm([1], inter=True), "which has two", "Merge()")


def test_processes_of_another_job(mpi):
    refused(mpi, mpi.comm(0, 1, 17, 18), "2 of 4 processes belong to another job")


def test_process_spawned_by_mpi(mpi):
    mpi.Comm.parent = fake_mpi.Comm([0], inter=True)
    refused(mpi, mpi.COMM_WORLD, "MPI_Comm_spawn", "mpirun")


def test_no_mpi4py(mpi, monkeypatch):
    monkeypatch.delitem(sys.modules, "mpi4py.MPI")
    refused(mpi, mpi.COMM_WORLD, "not loaded", "mpirun", "list of world ranks")


def test_a_job_of_another_launcher(mpi, monkeypatch):
    for name, value in {"RANK": "1", "SIZE": "2", "GLOO_RENDEZVOUS_ADDR": "h", "GLOO_RENDEZVOUS_PORT": "5"}.items():
        monkeypatch.setenv("HOROVOD_" + name, value)
    monkeypatch.setenv("HOROVOD_KEY_FD", "9")
    refused(mpi, mpi.COMM_WORLD, "rank 1 of 4", "HOROVOD_SIZE say that it is rank 1 of 2", "mpirun, mpiexec")
    monkeypatch.setenv("HOROVOD_WORKER", "3")
    refused(mpi, mpi.COMM_WORLD, "elastic")


def test_processes_outside_the_communicator(mpi):
    with pytest.raises(ValueError, match=r"comm is MPI.COMM_NULL: .*Only the members"):
        process_sets.check_init_arguments(mpi.COMM_NULL, None)


class Distributed:
    """A process group of another library."""


@pytest.mark.parametrize("bad", [Distributed(), 3, fake_mpi.Group([0]), fake_mpi.Comm])
def test_another_kind_of_object_is_named(mpi, bad):
    for use in (lambda: process_sets.check_init_arguments(bad, None), lambda: ProcessSet(bad)):
        with pytest.raises(
            ValueError, match=f"must be a sequence of world ranks or an mpi4py communicator, got {type(bad).__name__} "
        ):
            use()


def test_arguments(mpi):
    comm = mpi.comm(2, 1)
    result = process_sets.check_init_arguments(
        comm, [ProcessSet(mpi.comm(1)), ProcessSet(mpi.COMM_NULL), ProcessSet([0])]
    )
    assert (result.members, result.dynamic) == ([2, 1], False)
    assert result.comm is comm
    assert [(one.ranks, one.by_communicator) for one in result.specs()] == [([1], True), ([], True), ([0], False)]
    assert process_sets.check_init_arguments([1, 0], "dynamic").members == [0, 1]
    for empty in (None, []):
        assert process_sets.check_init_arguments(empty, [ProcessSet(mpi.COMM_NULL)]).members is None


def test_a_job_of_one_process(alone):
    hvd = HorovodBasics("tests")
    hvd.init(comm=alone.COMM_WORLD)
    try:
        assert (hvd.rank(), hvd.size()) == (0, 1)
        assert global_process_set.mpi_comm is alone.COMM_WORLD
        with pytest.raises(ValueError, match="MPI"):
            hvd.mpi_threads_supported()
    finally:
        hvd.shutdown()
    assert global_process_set.mpi_comm is None


def test_invalid_sets_are_named_by_index_and_init_can_be_retried(alone):
    hvd = HorovodBasics("tests")
    with pytest.raises(ValueError, match=r"process_sets\[0\] must be .*, got COMM_NULL on all ranks"):
        hvd.init(process_sets=[ProcessSet(alone.COMM_NULL)])
    with pytest.raises(ValueError, match=r"process_sets\[0\].*\[0\] exists already"):
        hvd.init(comm=alone.COMM_WORLD, process_sets=[ProcessSet(alone.COMM_WORLD)])
    hvd.init()
    hvd.shutdown()
