"""Files of the simulated libraries: from the C++ unit tests' build if there is one, else built separately."""

import fcntl
import functools
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ["simulated_cuda", "simulated_nccl", "hvd_kernels_host"]


def build(folder: Path, targets: list[str], *configure: str | Path) -> None:
    """Configure a folder if needed, and update libraries in it; one process at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".simulated.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "build.ninja").exists():
            subprocess.run(
                ["cmake", "-B", folder, "-G", "Ninja", *configure], check=True, timeout=120, stdout=subprocess.DEVNULL
            )
        command = ["cmake", "--build", folder, "--target", *targets]
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
    """Return the folder of libcuda.so.1, libhvd_kernels_host.so and the others, for LD_LIBRARY_PATH."""
    return _built(TARGETS)


@functools.cache
def mpi() -> Path:
    """Return the folder of libmpi.so.40, libmpi.so.12 and libmpi_abi.so.1: Open MPI, MPICH and the standard ABI."""
    return _built(["simulated_mpi_all"])
