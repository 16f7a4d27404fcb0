"""A simulated libnvidia-ml.so.1; what it knows: the head of nvml.c."""

import subprocess
from pathlib import Path


def build(folder: Path) -> Path:
    """Compiles it into a folder, which then stands for one of the system's: LD_LIBRARY_PATH finds it there."""
    library = folder / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("nvml.c")
    command = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o", library, source]
    subprocess.run(command, check=True, timeout=60)
    return library
