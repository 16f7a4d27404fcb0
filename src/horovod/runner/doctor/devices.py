"""Facts about the GPUs of this host, and the software that ranks need for them. No function here raises.

CUDA is started, and NCCL loaded, in separate processes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from horovod.common.devices import affinity, libraries, nvml, trying, versions, visible
from horovod.common.devices.libraries import Library
from horovod.runner.doctor.report import DeviceReport, Place

MPS_PIPES = "/tmp/nvidia-mps"
_MODULES = ("nvidia_peermem", "nv_peer_mem")


def examine(environ: Mapping[str, str] = os.environ, root: str = "/") -> DeviceReport:
    """Return the facts. `environ` is a worker's environment; sys and proc are read below `root`, for tests."""
    sys = os.path.join(root, "sys")
    survey = nvml.survey(pairs=True)
    hardware = affinity.gpus_by_vendor(sys)
    driver_error = libraries.driver_error(environ)
    cache, cache_error = _cache(environ)
    library = libraries.nccl(environ)
    nvtx = libraries.nvtx(environ)
    code, nccl_error = _nccl(library)
    tried = trying.try_cuda(libraries.driver(environ)) if survey.gpus and not driver_error else trying.Tried()
    return DeviceReport(
        survey=survey,
        usable=visible.choices(environ, survey)[0][:1024],
        variable=environ.get(visible.VARIABLE),
        places=[Place(affinity.near(gpu.bus, sys), affinity.cards(gpu.bus, sys)[:16]) for gpu in survey.gpus],
        hardware=hardware,
        driver=libraries.driver(environ)[:4000],
        driver_error=driver_error[:4000],
        cuda_error=tried.cuda[:4000],
        ipc_error=tried.ipc[:4000],
        jit=libraries.of_system(libraries.JIT, environ),
        cache=cache[:4000],
        cache_error=cache_error[:4000],
        torch_cuda=versions.torch_cuda(),
        nccl=library.path[:4000] if isinstance(library, Library) else "",
        nccl_source=library.source if isinstance(library, Library) else "",
        nccl_version=code,
        nccl_error=nccl_error[:4000],
        nccl_packages=versions.installed(),
        nvtx=nvtx.path[:4000] if isinstance(nvtx, Library) else "",
        mps=_mps(environ),
        direct=_direct(root),
        ports=affinity.ports(sys),
    )


def _nccl(library: Library | libraries.Missing) -> tuple[int, str]:
    """Return the version code, and what is wrong with the library.

    A missing library is wrong only where there are GPUs, which the caller checks; a variable with a wrong path always
    is.
    """
    if not isinstance(library, Library):
        return 0, library.reason if libraries.NCCL_VARIABLE in library.reason else ""
    code, error = versions.load_elsewhere(library.path)
    return code or versions.of_nccl(library), f"{library.path} cannot be loaded: {error}" if error else ""


def _cache(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the folder in which the driver stores compiled kernels, and why it cannot."""
    if environ.get("CUDA_CACHE_DISABLE", "0").strip() not in ("", "0"):
        return "", "CUDA_CACHE_DISABLE is set"
    home = environ.get("HOME", "")
    folder = environ.get("CUDA_CACHE_PATH", "") or (os.path.join(home, ".nv/ComputeCache") if home else "")
    if not folder:
        return "", "there is no HOME and no CUDA_CACHE_PATH"
    place = Path(folder)
    try:
        while not place.exists() and place != place.parent:
            place = place.parent
    except OSError as error:
        return folder, f"{place}: {error.strerror}"
    return folder, "" if os.access(place, os.W_OK | os.X_OK) else f"{place} cannot be written"


def _mps(environ: Mapping[str, str]) -> str:
    folder = environ.get("CUDA_MPS_PIPE_DIRECTORY", "") or MPS_PIPES
    return folder[:4000] if os.path.exists(os.path.join(folder, "control")) else ""


def _direct(root: str) -> str:
    """Return what lets InfiniBand cards access GPU memory: a kernel module, or DMA-BUF of the open kernel modules."""
    for name in _MODULES:
        if os.path.isdir(os.path.join(root, "sys/module", name)):
            return name
    try:
        text = Path(root, "proc/driver/nvidia/version").read_text(errors="replace")
    except OSError:
        return ""
    return "DMA-BUF" if "Open Kernel Module" in text and _kernel(root) >= (5, 12) else ""


def _kernel(root: str) -> tuple[int, int]:
    try:
        major, minor = Path(root, "proc/sys/kernel/osrelease").read_text().split("-")[0].split(".")[:2]
        return int(major), int(minor)
    except (OSError, ValueError):
        return 0, 0
