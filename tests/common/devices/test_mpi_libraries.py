"""Search for an MPI library, and errors for none and for two."""

import shutil

import pytest

from horovod.common.devices import mpi_libraries
from horovod.common.devices.libraries import Library


@pytest.fixture(autouse=True)
def nothing_here(monkeypatch, tmp_path):
    """Simulate a machine and process without an MPI library."""
    monkeypatch.setattr(mpi_libraries, "loaded", list)
    monkeypatch.setattr(mpi_libraries, "_launchers", lambda: iter(()))
    monkeypatch.setattr("horovod.common.devices.libraries.CACHE", str(tmp_path / "none"))
    monkeypatch.setattr("horovod.common.devices.libraries._SYSTEM", ())
    monkeypatch.setattr(mpi_libraries.sys, "prefix", str(tmp_path / "prefix"))


def make(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("")
    return folder


def test_the_variable_has_priority(tmp_path):
    make(tmp_path / "lib", "libmpi.so.12")
    path = str(make(tmp_path / "given", "libmpi.so") / "libmpi.so")
    environ = {"HOROVOD_MPI_LIBRARY": path, "LD_LIBRARY_PATH": str(tmp_path / "lib")}
    assert mpi_libraries.find(environ, "MPICH") == Library(path, "HOROVOD_MPI_LIBRARY")
    environ["HOROVOD_MPI_LIBRARY"] = "libmpi.so.12"
    assert mpi_libraries.find(environ, "MPICH").path == str(tmp_path / "lib/libmpi.so.12")
    environ["HOROVOD_MPI_LIBRARY"] = "/nowhere/libmpi.so"
    assert "/nowhere/libmpi.so" in mpi_libraries.find(environ, "MPICH").reason


def test_libraries_in_the_process_are_preferred(tmp_path, monkeypatch):
    path = str(make(tmp_path / "mine", "libmpi.so.40") / "libmpi.so.40")
    monkeypatch.setattr(mpi_libraries, "loaded", lambda: [path])
    environ = {"LD_LIBRARY_PATH": str(make(tmp_path / "lib", "libmpi.so.40"))}
    assert mpi_libraries.find(environ, "Open MPI") == Library(path, "loaded already")
    other = str(tmp_path / "lib/libmpi.so.40")
    with pytest.raises(ValueError, match=r"has loaded another MPI already, .*mine"):
        mpi_libraries.find({"HOROVOD_MPI_LIBRARY": other}, "Open MPI")
    monkeypatch.setattr(mpi_libraries, "loaded", lambda: [path, other])
    with pytest.raises(ValueError, match=r"one MPI library, got .*mine.* and .*lib"):
        mpi_libraries.find({}, "Open MPI")


def test_search_order_launcher_system_python(tmp_path, monkeypatch):
    beside, system = make(tmp_path / "mpi/lib", "libmpi.so.12"), make(tmp_path / "lib", "libmpi.so.12")
    make(tmp_path / "prefix/lib", "libmpi_abi.so.1")
    environ = {"LD_LIBRARY_PATH": str(system)}
    monkeypatch.setattr(mpi_libraries, "_launchers", lambda: iter([tmp_path / "mpi/bin/mpirun"]))
    assert mpi_libraries.find(environ, "MPICH") == Library(f"{beside}/libmpi.so.12", "beside the launcher")
    shutil.rmtree(beside)
    assert mpi_libraries.find(environ, "MPICH") == Library(f"{system}/libmpi.so.12", "the system")
    # It does not match Open MPI's launcher.
    assert mpi_libraries.find(environ, "Open MPI") == Library(
        str(tmp_path / "prefix/lib/libmpi_abi.so.1"), "beside Python"
    )


def test_mpi_families_of_a_launcher():
    assert mpi_libraries.candidates({}, "jsrun")[0] == "libmpi.so.40"
    assert mpi_libraries.candidates({}, "MPICH")[0] == "libmpi.so.12"
    assert "libmpi.so.40" not in mpi_libraries.candidates({}, "MPICH")
    assert mpi_libraries.candidates({"PMIX_NAMESPACE": "x"}, "srun")[0] == "libmpi.so.40"
    assert mpi_libraries.candidates({}, "srun")[0] == "libmpi.so.12"
