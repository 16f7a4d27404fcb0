"""The simulated libraries as files: those of the C++ unit tests' build where there is one, else built alone."""

import fcntl
import functools
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ["simulated_cuda", "simulated_nccl", "hvd_kernels_host"]


def build(where: Path, *configure: str | Path) -> None:
    """Configures a folder if need be, and brings the libraries in it up to date; one process after another."""
    where.mkdir(parents=True, exist_ok=True)
    with (where / ".simulated.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (where / "build.ninja").exists():
            subprocess.run(
                ["cmake", "-B", where, "-G", "Ninja", *configure], check=True, timeout=120, stdout=subprocess.DEVNULL
            )
        command = ["cmake", "--build", where, "--target", *TARGETS]
        subprocess.run(command, check=True, timeout=600, stdout=subprocess.DEVNULL)


@functools.cache
def folder() -> Path:
    """Where libcuda.so.1, libhvd_kernels_host.so and the others lie; LD_LIBRARY_PATH finds them there.

    The environment for a process that uses them is `environment()`.
    """
    unit = ROOT / "build" / "unit"
    if (unit / "build.ninja").exists():
        build(unit)
        return unit / "simulated"
    build(ROOT / "build" / "simulated", "-S", ROOT / "tests" / "simulated")
    return ROOT / "build" / "simulated"


def environment(**knobs: int) -> dict[str, str]:
    """What a process needs in its environment to find them; knobs as in `tests/simulated/cuda/knobs.h`: devices=2."""
    where = folder()
    settings = {f"SIMCUDA_{name.upper()}": str(value) for name, value in knobs.items()}
    return {"LD_LIBRARY_PATH": str(where), "SIMCUDA_KERNELS": str(where / "libhvd_kernels_host.so"), **settings}
