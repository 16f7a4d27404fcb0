"""Tuning values measured on this host (core/plan/tuning.h), kept between jobs in the user's cache directory.

There is one file per host and shape of the job. ``python -m horovod.benchmark --calibrate`` writes it. Rank 0 reads it
in ``init`` and passes the values to all ranks as HOROVOD_TUNING. No value changes any bit of a result, so a missing,
damaged or outdated file costs only speed.

Calibration does not run automatically at the first ``init``; docs/performance.md explains why.
"""

import contextlib
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

import msgspec

FORMAT = 1
_LIMIT = 65536  # maximum bytes of a file


@dataclass(frozen=True)
class World:
    """Host and shape of the job that values were measured for. Jobs with an equal World may share them."""

    machine: str
    """Identity of rank 0's host: machine id, CPU model and number of cores."""
    size: int
    local_size: int
    cross_size: int
    transport: str
    """Value of HOROVOD_TRANSPORT."""

    @classmethod
    def here(cls, size: int, local_size: int, cross_size: int, transport: str) -> "World":
        """Return the World of a job of this shape with its rank 0 on this host."""
        return cls(machine_text(), size, local_size, cross_size, transport)


def machine_text() -> str:
    """Return an identity of this host and its CPUs.

    It distinguishes hosts that share a home directory, and a host before and after a change of its CPUs.
    """
    name = _first_line("/etc/machine-id") or os.uname().nodename
    return f"{name}/{os.uname().machine}/{_cpu_model()}/{os.cpu_count()}"


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    world: World
    tuning: dict[str, int]
    measured: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    model: dict[str, float] = msgspec.field(default_factory=dict)


def directory() -> Path:
    """Return $XDG_CACHE_HOME/horovod, or else ~/.cache/horovod."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification says to ignore relative paths
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "horovod")


def path_of(world: World) -> Path:
    """Return the path of a World's file."""
    digest = hashlib.sha256(msgspec.json.encode(world)).hexdigest()[:24]
    return directory() / f"tuning-{digest}.json"


def load(world: World) -> tuple[str, str]:
    """Return the values as text for HOROVOD_TUNING, and why an existing file is not used; either may be empty."""
    path = path_of(world)
    try:
        data = _read(path)
    except FileNotFoundError:
        return "", ""
    except (OSError, ValueError) as error:
        return "", f"{path} is not used: {getattr(error, 'strerror', None) or error}"
    try:
        found = msgspec.json.decode(data, type=_File)
        if found.format != FORMAT or found.world != world:
            raise ValueError("it is of another version or world")
        return checked(found.tuning), ""
    except ValueError as error:  # msgspec's errors are ValueErrors too
        return "", f"{path} is not used: {error}; calibrate again, or remove it"


def link_bandwidth(world: World) -> float | None:
    """Return the measured bandwidth of a link in bytes per second; None if not measured.

    It is that of links between hosts, or within the host if there is only one.
    """
    try:
        found = msgspec.json.decode(_read(path_of(world)), type=_File)
    except (OSError, ValueError):
        return None
    seconds = found.model.get("beta" if world.cross_size > 1 else "local_beta", 0.0)
    return 1 / seconds if found.world == world and seconds > 0 else None


def checked(tuning: dict[str, int]) -> str:
    """Return the values as text for HOROVOD_TUNING. Raises ValueError naming a value that the engine refuses."""
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
    """Store the values in a file that only this user can access, replacing it atomically.

    Args:
        world: What the values were measured for.
        tuning: The values.
        measured: Measured seconds behind the choice, for human readers.
        model: Parameters of the cost model.

    Returns:
        Path of the file.

    Raises:
        ValueError: If the engine refuses a value.
        OSError: If the file cannot be written.
    """
    import tempfile  # imports much of the standard library, which starting workers do not need

    checked(tuning)
    path = path_of(world)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = msgspec.json.format(msgspec.json.encode(_File(FORMAT, world, tuning, measured or {}, model or {})), indent=1)
    handle, temporary = tempfile.mkstemp(prefix=".tuning-", dir=path.parent)  # created with mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return path


def _read(path: Path) -> bytes:
    """Read the file. Raises ValueError if another user could have written it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ValueError("it is not a file that only this user can read and write")
        if status.st_size > _LIMIT:
            raise ValueError(f"it has {status.st_size} bytes")
        return file.read(_LIMIT)


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
