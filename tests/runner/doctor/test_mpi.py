"""horovodrun --doctor and MPI: detection on a host, conclusions and output. With the simulated MPI."""

import os
from pathlib import Path

import pytest

from horovod.common.devices import mpi_libraries
from horovod.runner.doctor import mpi
from horovod.runner.doctor.report import WARN, MpiReport
from tests.runner.doctor.test_doctor import problems, reply, with_report
from tests.simulated import libraries

GOOD = MpiReport(
    path="/opt/lib/libmpi.so.12", source="the system", version="MPICH 5.0.2", abi="MPICH", level="MPI_THREAD_MULTIPLE"
)


def on_host(name="a", report=GOOD):
    return reply(name, report=with_report(mpi=report))


def test_unusable_libraries():
    broken = MpiReport(path="/x/libmpi.so", source="the system", error="/x/libmpi.so has no MPI_Test")
    assert problems([on_host(report=broken)], mpi.check) == [(WARN, "a", "/x/libmpi.so has no MPI_Test")]
    assert mpi.shown(broken) == "cannot be used (/x/libmpi.so, the system)"


def test_different_mpi_versions_on_hosts():
    other = MpiReport("/y", "the system", version="Open MPI 5.0.11", abi="Open MPI", level="MPI_THREAD_MULTIPLE")
    ((level, host, text),) = problems([on_host(), on_host("b", other)], mpi.check)
    assert (level, host) == (WARN, "")
    assert text == "differs: MPICH 5.0.2 on a; Open MPI 5.0.11 on b"


@pytest.fixture(scope="module")
def simulated() -> Path:
    return libraries.mpi()


FAMILIES = [
    ("libmpi.so.40", "Open MPI 5.0.11", "Open MPI"),
    ("libmpi.so.12", "MPICH 5.0.2", "MPICH"),
    ("libmpi_abi.so.1", "MPICH 5.0.2", "the standard ABI of MPI"),
]


@pytest.mark.heavy  # compiles the simulated MPI
@pytest.mark.parametrize(("name", "version", "abi"), FAMILIES)
def test_description_of_a_library(simulated, name, version, abi):
    environ = {**os.environ, "HOROVOD_MPI_LIBRARY": str(simulated / name)}
    report = mpi.examine(environ)
    assert report == MpiReport(str(simulated / name), "HOROVOD_MPI_LIBRARY", "", version, abi, "MPI_THREAD_MULTIPLE")
    low = mpi.examine({**environ, "SIMMPI_LEVEL": "1", "HOROVOD_MPI_THREADS_DISABLE": "1"})
    assert (low.level, low.one_thread) == ("MPI_THREAD_FUNNELED", True)
    assert "one thread" in mpi.shown(low)


def test_missing_or_wrong_library():
    assert "/nowhere/libmpi.so" in mpi.examine({**os.environ, "HOROVOD_MPI_LIBRARY": "/nowhere/libmpi.so"}).missing
    assert "so it is not an MPI" in mpi.examine({**os.environ, "HOROVOD_MPI_LIBRARY": "libm.so.6"}).error
    assert "HOROVOD_MPI_THREADS_DISABLE" in mpi.examine({**os.environ, "HOROVOD_MPI_THREADS_DISABLE": "x"}).error


@pytest.mark.heavy  # compiles the simulated MPI
def test_a_library_that_hangs_or_crashes(simulated):
    path = str(simulated / "libmpi.so.12")
    slow = mpi_libraries.try_mpi(path, {**os.environ, "SIMMPI_BLOCK": "Init_thread"}, 1.0)
    assert slow.error == f"MPI_Init of {path} takes longer than 1 s in a process alone"
    dead = mpi_libraries.try_mpi(path, {**os.environ, "SIMMPI_WORLD": "99"})
    assert dead.error.startswith(f"the process that tried {path} ended with -6 and said: ")
    refused = mpi_libraries.try_mpi(path, {**os.environ, "SIMMPI_FAIL": "Init_thread:1"})
    assert "MPI_Init_thread failed with error 15" in refused.error
