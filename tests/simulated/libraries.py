"""The simulated libraries as files: those of the C++ unit tests' build where there is one, else built alone."""

import fcntl
import functools
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ["simulated_cuda", "simulated_nccl", "hvd_kernels_host"]


def build(where: Path, targets: list[str], *configure: str | Path) -> None:
    """Configures a folder if need be, and brings libraries in it up to date; one process after another."""
    where.mkdir(parents=True, exist_ok=True)
    with (where / ".simulated.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (where / "build.ninja").exists():
            subprocess.run(
                ["cmake", "-B", where, "-G", "Ninja", *configure], check=True, timeout=120, stdout=subprocess.DEVNULL
            )
        command = ["cmake", "--build", where, "--target", *targets]
        subprocess.run(command, check=True, timeout=600, stdout=subprocess.DEVNULL)


def _built(targets: list[str]) -> Path:
    unit = ROOT / "build" / "unit"
    if (unit / "build.ninja").exists():
        build(unit, targets)
        return unit / "simulated"
    build(ROOT / "build" / "simulated", targets, "-S", ROOT / "tests" / "simulated")
    return ROOT / "build" / "simulated"


@functools.cache
def folder() -> Path:
    """Where libcuda.so.1, libhvd_kernels_host.so and the others lie; LD_LIBRARY_PATH finds them there."""
    return _built(TARGETS)


@functools.cache
def mpi() -> Path:
    """Where libmpi.so.40, libmpi.so.12 and libmpi_abi.so.1 lie: Open MPI, MPICH and the standard ABI."""
    return _built(["simulated_mpi_all"])
