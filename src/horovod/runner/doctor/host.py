"""Facts about this host. If a fact is unknown, the report contains the reason instead of an exception."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import resource
import sys

from horovod._version import __version__
from horovod.common.contract import cgroups, descriptors
from horovod.common.network.interfaces import Interface, scan
from horovod.runner.base.frameworks import OF_DISTRIBUTION
from horovod.runner.doctor import container, devices, mpi
from horovod.runner.doctor.report import HostReport

DISTRIBUTIONS = (*OF_DISTRIBUTION, "numpy", "mpi4py")
LIMITS = {
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "memlock": resource.RLIMIT_MEMLOCK,
    "fsize": resource.RLIMIT_FSIZE,
}
SEGMENT = 64 << 20  # shared memory that a small job needs on each host (bytes)


def examine() -> HostReport:
    """Examine this host without connecting to other hosts."""
    engine_error, ciphers = _engine()
    memory = _memory()
    return HostReport(
        version=__version__,
        python=platform.python_version(),
        executable=sys.executable,
        kernel=platform.release(),
        engine_error=engine_error,
        ciphers=ciphers,
        frameworks=_versions(DISTRIBUTIONS),
        interfaces=_interfaces(),
        wanted_interfaces=os.environ.get("HOROVOD_GLOO_IFACE", ""),
        cores=len(os.sched_getaffinity(0)),
        all_cores=os.cpu_count() or 0,
        quota=cgroups.cores(),
        load=os.getloadavg()[0],
        memory=memory[0],
        memory_available=memory[1],
        memfd_error=_memfd_error(SEGMENT),
        shm_free=_free("/dev/shm"),
        limits={name: resource.getrlimit(number) for name, number in LIMITS.items()},
        devices=devices.examine(),
        mpi=mpi.examine(),
        container=container.examine(),
    )


def _engine() -> tuple[str, list[str]]:
    """Return the reason why the engine cannot be loaded or an empty string, and the engine's ciphers."""
    try:
        from horovod.common.security import cipher

        return "", list(cipher.available())
    except Exception as error:  # A broken installation can raise any exception.
        return f"{type(error).__name__}: {error}"[:4000], []


def _versions(names: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _interfaces() -> list[Interface]:
    try:
        return scan()
    except OSError:
        return []


def _memory() -> tuple[int, int]:
    """Return the total and available memory in bytes.

    A container's limit counts if it is lower than the machine's memory.
    """
    machine, room = _meminfo(), cgroups.memory()
    total, free = machine.get("MemTotal", -1), machine.get("MemAvailable", -1)
    return (total, free) if room is None else (min(total, room.limit), min(free, room.free))


def _meminfo() -> dict[str, int]:
    found = {}
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo") as file:
        for line in file:
            name, _, rest = line.partition(":")
            found[name] = int(rest.split()[0]) * 1024
    return found


def _memfd_error(size: int) -> str:
    """Return the reason why ranks on this host cannot share memory, or an empty string if they can."""
    try:
        fd = descriptors.create_memory_file("horovod-doctor")
    except descriptors.MemoryFileError as error:
        return str(error)
    try:
        os.ftruncate(fd, size)
    except OSError as error:
        return f"{size >> 20} MiB of shared memory are refused: {error.strerror}"
    finally:
        os.close(fd)
    return ""


def _free(path: str) -> int:
    try:
        stat = os.statvfs(path)
    except OSError:
        return -1
    return stat.f_bavail * stat.f_frsize if stat.f_blocks else -1  # A size of 0 means a tmpfs without a limit.
