"""Cache of tuning values (core/plan/tuning.h) measured on this host, in the user's cache directory.

There is one file per host and job size. ``python -m horovod.benchmark --calibrate`` writes the file. Rank 0 reads it in
``init`` and passes the values to all ranks as HOROVOD_TUNING. The values affect only speed and never change a result. A
missing, damaged or outdated file therefore does no harm.

Calibration does not run automatically at the first ``init``; docs/performance.md explains why.
"""

import contextlib
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from horovod.common.contract.private_files import cache_directory, read_private, write_private

FORMAT = 1
_LIMIT = 65536  # maximum size of a calibration file in bytes


@dataclass(frozen=True)
class World:
    """Host and job size for which tuning values were measured. Jobs for which both are equal share the values."""

    machine: str
    """Identity of rank 0's host: machine id, CPU model and number of cores."""
    size: int
    local_size: int
    cross_size: int
    transport: str
    """Value of HOROVOD_TRANSPORT."""

    @classmethod
    def here(cls, size: int, local_size: int, cross_size: int, transport: str) -> "World":
        """Return the ``World`` for a job of this size whose rank 0 runs on this host."""
        return cls(machine_text(), size, local_size, cross_size, transport)


def machine_text() -> str:
    """Return an identifier of this host and its CPUs.

    Hosts that share a home directory get different identifiers. A change of CPUs changes the identifier.
    """
    name = _first_line("/etc/machine-id") or os.uname().nodename
    return f"{name}/{os.uname().machine}/{_cpu_model()}/{os.cpu_count()}"


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    world: World
    tuning: dict[str, int]
    measured: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    model: dict[str, float] = msgspec.field(default_factory=dict)


def path_of(world: World) -> Path:
    """Return the path of the calibration file for ``world``."""
    digest = hashlib.sha256(msgspec.json.encode(world)).hexdigest()[:24]
    return cache_directory() / f"tuning-{digest}.json"


def load(world: World) -> tuple[str, str]:
    """Read the calibration file for ``world``.

    Returns:
        The value for HOROVOD_TUNING, or "" if the file is missing or unusable. The reason why the file is unusable, or
        "" if it is usable or missing.
    """  # noqa: DOC501
    path = path_of(world)
    try:
        data = read_private(path, _LIMIT)
    except FileNotFoundError:
        return "", ""
    except (OSError, ValueError) as error:
        return "", f"{path} is not used: {getattr(error, 'strerror', None) or error}"
    try:
        found = msgspec.json.decode(data, type=_File)
        if found.format != FORMAT or found.world != world:
            raise ValueError("it is of another version or world")
        return checked(found.tuning), ""
    except ValueError as error:
        return "", f"{path} is not used: {error}; calibrate again, or remove it"


def link_bandwidth(world: World) -> float | None:
    """Return the measured link bandwidth in bytes/s, or None if it was not measured.

    In a job on several hosts, this is the bandwidth between hosts. In a single-host job, it is the bandwidth within the
    host.
    """
    try:
        found = msgspec.json.decode(read_private(path_of(world), _LIMIT), type=_File)
    except (OSError, ValueError):
        return None
    seconds = found.model.get("beta" if world.cross_size > 1 else "local_beta", 0.0)
    return 1 / seconds if found.world == world and seconds > 0 else None


def checked(tuning: dict[str, int]) -> str:
    """Format the values as a HOROVOD_TUNING string.

    Raises:
        ValueError: If the engine rejects a value. The message names it.
    """
    from horovod import _core

    text = ",".join(f"{name}={value}" for name, value in tuning.items())
    _core.tuning(text)
    return text


def store(
    world: World,
    tuning: dict[str, int],
    measured: dict[str, dict[str, float]] | None = None,
    model: dict[str, float] | None = None,
) -> Path:
    """Store tuning values in a file that only this user can access, replacing it atomically.

    Args:
        world: Host and job size for which the values were measured.
        tuning: Tuning values by name.
        measured: Measured times in seconds from which the values were derived. For human readers only.
        model: Parameters of the cost model.

    Returns:
        Path of the file.

    Raises:
        ValueError: If the engine rejects a value.
        OSError: If the file cannot be written.
    """
    checked(tuning)
    path = path_of(world)
    data = msgspec.json.format(msgspec.json.encode(_File(FORMAT, world, tuning, measured or {}, model or {})), indent=1)
    write_private(path, data + b"\n")
    return path


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""


def _cpu_model() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return ""
