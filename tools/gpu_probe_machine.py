"""Properties of a machine with a GPU that can be read without CUDA, for gpu_probe.py."""

from __future__ import annotations

import glob
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any


def first_line(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}"
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    if done.returncode:
        return f"ended with {done.returncode}: {(lines or ['nothing was said'])[-1]}"
    return (lines or [""])[0]


def version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not there"


def runtime() -> str:
    release = platform.release()
    if "-fc" in release or "firecracker" in release:
        return "Firecracker"
    if "gvisor" in Path("/proc/version").read_text().lower() or release.startswith("4.4.0"):
        return "gVisor"
    return "unknown"


def nccl() -> dict[str, Any]:
    paths = [path for folder in sys.path for path in glob.glob(f"{folder or '.'}/nvidia/nccl/lib/libnccl.so.2")]
    program = (
        "import ctypes,sys; v=ctypes.c_int(); ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(v)); print(v.value)"
    )
    path = paths[0] if paths else "libnccl.so.2"
    return {"path": path, "version": first_line(sys.executable, "-c", program, path)}


def machine() -> dict[str, Any]:
    tools = {
        name: shutil.which(name) or "" for name in ("nvcc", "compute-sanitizer", "cmake", "ninja", "g++", "nvidia-smi")
    }
    memory = os.statvfs("/dev/shm")
    return {
        "kernel": platform.release(),
        "runtime": runtime(),
        "CPUs": len(os.sched_getaffinity(0)),
        "user": os.getuid(),
        "/dev/shm, MiB": memory.f_bsize * memory.f_bavail >> 20,
        "Python": f"{platform.python_version()} ({sys.executable})",
        "packages": {
            name: version_of(name)
            for name in (
                "torch",
                "jax",
                "cupy-cuda13x",
                "nvidia-nccl-cu13",
                "numpy",
                "nanobind",
                "scikit-build-core",
                "pip",
            )
        },
        "tools": tools,
        "g++": first_line("g++", "--version"),
        "nvidia-smi": first_line(
            "nvidia-smi",
            "--query-gpu=name,driver_version,memory.total,compute_mode,mig.mode.current",
            "--format=csv,noheader",
        ),
        "NCCL": nccl(),
        "environment": {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("CUDA", "NCCL", "LD_LIBRARY", "NVIDIA"))
        },
    }
