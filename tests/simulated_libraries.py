"""The simulated libraries of tests/simulated, built once."""

import fcntl
import subprocess
from pathlib import Path

_ROOT = Path(__file__).parents[1]


def cuda_driver() -> Path:
    """The simulated libcuda.so.1."""
    of_unit_tests = _ROOT / "build/unit/simulated/libcuda.so.1"
    if of_unit_tests.exists():
        return of_unit_tests
    build = _ROOT / "build/simulated"
    build.mkdir(parents=True, exist_ok=True)
    with (build / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers of pytest want it
        for command in (["cmake", "-S", "tests/simulated", "-B", str(build)], ["cmake", "--build", str(build)]):
            done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, done.stdout + done.stderr
    return build / "libcuda.so.1"
