"""Fixtures for real launchers, skipped where not installed.

Open MPI and MPICH have separate environments beside .venv (created by make); Slurm comes from the system.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launchers import programs, slurm
from tests.launchers.programs import WORKER, Done


def _need(program: str, folder: str) -> Path:
    path = programs.find(program, folder)
    if path is None:
        pytest.skip(f"{folder} has no {program} (scripts/install-launchers.sh)")
    return path


@pytest.fixture(scope="session")
def mpirun_path() -> Path:
    """Path of Open MPI's mpirun."""
    return _need("mpirun", programs.OPEN_MPI)


@pytest.fixture(scope="session")
def mpiexec_path() -> Path:
    """Path of MPICH's mpiexec."""
    return _need("mpiexec", programs.MPICH)


@pytest.fixture
def mpirun(mpirun_path: Path, tmp_path: Path) -> Callable[..., Done]:
    """mpirun(size, *arguments of the worker, before=[...], **variables)."""

    def start(size: int, *argv: str, before: tuple[str, ...] = (), **variables: str) -> Done:
        command = [mpirun_path, "--allow-run-as-root", "--oversubscribe", "-np", str(size), *before, *WORKER, *argv]
        return programs.run(command, programs.environment(TMPDIR=str(tmp_path), **variables))

    return start


@pytest.fixture
def mpiexec(mpiexec_path: Path) -> Callable[..., Done]:
    """mpiexec(size, *arguments of the worker, **variables)."""

    def start(size: int, *argv: str, **variables: str) -> Done:
        return programs.run([mpiexec_path, "-np", str(size), *WORKER, *argv], programs.environment(**variables))

    return start


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm.Slurm]:
    """Four nodes n1 ... n4."""
    if reason := slurm.obstacle():
        pytest.skip(reason)
    cluster = slurm.Slurm(tmp_path_factory.mktemp("slurm"))
    yield cluster
    cluster.close()
