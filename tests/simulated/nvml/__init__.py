"""A simulated libnvidia-ml.so.1; the head of nvml.c lists its data."""

import subprocess
from pathlib import Path


def build(folder: Path) -> Path:
    """Compile it into a folder for LD_LIBRARY_PATH, where it replaces the system's."""
    library = folder / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("nvml.c")
    command = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o", library, source]
    subprocess.run(command, check=True, timeout=60)
    return library
