"""horovodrun --doctor and MPI: detection on a host, conclusions and output. With the simulated MPI."""

import os
import shutil
from pathlib import Path

import pytest

from horovod.common.devices import mpi_libraries
from horovod.runner.doctor import mpi
from horovod.runner.doctor.report import FAIL, WARN, MpiReport
from tests.runner.doctor.test_doctor import answer, bad, with_report
from tests.runner.launching import executable
from tests.simulated import libraries

GOOD = MpiReport(
    path="/opt/lib/libmpi.so.12", source="the system", version="MPICH 5.0.2", abi="MPICH", level="MPI_THREAD_MULTIPLE"
)


def on_host(name="a", report=GOOD):
    return answer(name, report=with_report(mpi=report))


def test_what_is_well_or_not_there_is_not_spoken_of():
    assert bad([on_host(), on_host("b")], mpi.check) == []
    assert bad([answer(), answer("b")], mpi.check) == []
    assert mpi.shown(MpiReport(missing="there is none")) == "-"
    assert mpi.shown(GOOD) == "MPICH 5.0.2 (/opt/lib/libmpi.so.12, the system), ABI: MPICH, MPI_THREAD_MULTIPLE"


def test_what_cannot_be_used():
    broken = MpiReport(path="/x/libmpi.so", source="the system", error="/x/libmpi.so has no MPI_Test")
    assert bad([on_host(report=broken)], mpi.check) == [(WARN, "a", "/x/libmpi.so has no MPI_Test")]
    assert mpi.shown(broken) == "cannot be used (/x/libmpi.so, the system)"


def test_a_low_level_of_threads():
    low = MpiReport("/x", "the system", version="MPICH 3.4", abi="MPICH", level="MPI_THREAD_FUNNELED")
    ((level, _, text),) = bad([on_host(report=low)], mpi.check)
    assert level == WARN
    assert text.startswith("MPICH 3.4 grants MPI_THREAD_FUNNELED only")


def test_unlike_hosts():
    other = MpiReport("/y", "the system", version="Open MPI 5.0.11", abi="Open MPI", level="MPI_THREAD_MULTIPLE")
    ((level, host, text),) = bad([on_host(), on_host("b", other)], mpi.check)
    assert (level, host) == (WARN, "")
    assert text == "differs: MPICH 5.0.2 on a; Open MPI 5.0.11 on b"


def test_none_where_it_is_wanted():
    without = [on_host(report=MpiReport(missing="there is none of libmpi.so.12"))]
    assert list(mpi.where_wanted({}, without)) == []
    assert list(mpi.where_wanted({"HOROVOD_CPU_OPERATIONS": "MPI"}, [on_host()])) == []
    (finding,) = mpi.where_wanted({"HOROVOD_CPU_OPERATIONS": "MPI"}, without)
    assert (finding.level, finding.host) == (FAIL, "a")
    assert finding.text == "HOROVOD_CPU_OPERATIONS is mpi, but there is none of libmpi.so.12"


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
def test_what_a_library_is(simulated, name, version, abi):
    environ = {**os.environ, "HOROVOD_MPI_LIBRARY": str(simulated / name)}
    report = mpi.examine(environ)
    assert report == MpiReport(str(simulated / name), "HOROVOD_MPI_LIBRARY", "", version, abi, "MPI_THREAD_MULTIPLE")
    low = mpi.examine({**environ, "SIMMPI_LEVEL": "1", "HOROVOD_MPI_THREADS_DISABLE": "1"})
    assert (low.level, low.one_thread) == ("MPI_THREAD_FUNNELED", True)
    assert "one thread" in mpi.shown(low)


@pytest.mark.heavy  # compiles the simulated MPI
def test_the_library_of_the_launcher_in_path(simulated, tmp_path):
    for folder in ("bin", "lib"):
        (tmp_path / folder).mkdir()
    shutil.copy(simulated / "libmpi.so.40", tmp_path / "lib")
    launcher = executable(tmp_path / "bin/mpirun", "#!/bin/sh\n")
    report = mpi.examine({**os.environ, "HOROVOD_MPI_LIBRARY": "", "PATH": f"{launcher.parent}:{os.environ['PATH']}"})
    assert report.path == str(tmp_path / "lib/libmpi.so.40")
    assert report.source == f"beside {launcher}"
    assert report.version == "Open MPI 5.0.11"


def test_a_library_that_is_not_there_or_is_something_else():
    assert "/nowhere/libmpi.so" in mpi.examine({**os.environ, "HOROVOD_MPI_LIBRARY": "/nowhere/libmpi.so"}).missing
    assert "so it is not an MPI" in mpi.examine({**os.environ, "HOROVOD_MPI_LIBRARY": "libm.so.6"}).error
    assert "HOROVOD_MPI_THREADS_DISABLE" in mpi.examine({**os.environ, "HOROVOD_MPI_THREADS_DISABLE": "x"}).error


@pytest.mark.heavy  # compiles the simulated MPI
def test_a_library_that_does_not_come_back_or_dies(simulated):
    path = str(simulated / "libmpi.so.12")
    slow = mpi_libraries.try_mpi(path, {**os.environ, "SIMMPI_BLOCK": "Init_thread"}, 1.0)
    assert slow.error == f"MPI_Init of {path} takes longer than 1 s in a process alone"
    dead = mpi_libraries.try_mpi(path, {**os.environ, "SIMMPI_WORLD": "99"})
    assert dead.error.startswith(f"the process that tried {path} ended with -6 and said: ")
    refused = mpi_libraries.try_mpi(path, {**os.environ, "SIMMPI_FAIL": "Init_thread:1"})
    assert "MPI_Init_thread failed with error 15" in refused.error
