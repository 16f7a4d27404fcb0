"""Sizes measured on this host (core/plan/tuning.h), kept from job to job in the user's cache directory.

A file for each host and shape of the world: measured by ``python -m horovod.benchmark --calibrate``, read by rank 0 in
``init``, which passes the values on to all ranks as HOROVOD_TUNING. No value changes a bit of a result, so a file that
is missing, damaged or of another version costs speed at most.

Calibration does not run by itself at the first ``init``; docs/performance.md tells why.
"""

import contextlib
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

import msgspec

FORMAT = 1
_LIMIT = 65536  # bytes of a file


@dataclass(frozen=True)
class World:
    """What the values were measured on, and whom they are for. Equal for jobs that may share them."""

    machine: str
    """Identity of rank 0's host: its id, model of CPU, number of cores."""
    size: int
    local_size: int
    cross_size: int
    transport: str
    """HOROVOD_TRANSPORT."""

    @classmethod
    def here(cls, size: int, local_size: int, cross_size: int, transport: str) -> "World":
        """The world of a job of this shape with its rank 0 on this host."""
        return cls(machine_text(), size, local_size, cross_size, transport)


def machine_text() -> str:
    """Tells hosts apart that share a home directory, and a host from what it was before its CPUs were changed."""
    name = _first_line("/etc/machine-id") or os.uname().nodename
    return f"{name}/{os.uname().machine}/{_cpu_model()}/{os.cpu_count()}"


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    world: World
    tuning: dict[str, int]
    measured: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    model: dict[str, float] = msgspec.field(default_factory=dict)


def directory() -> Path:
    """$XDG_CACHE_HOME/horovod, else ~/.cache/horovod."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification: relative ones are to be ignored
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "horovod")


def path_of(world: World) -> Path:
    """The file of one world."""
    digest = hashlib.sha256(msgspec.json.encode(world)).hexdigest()[:24]
    return directory() / f"tuning-{digest}.json"


def load(world: World) -> tuple[str, str]:
    """The sizes as text for HOROVOD_TUNING, empty where there are none; and why a file that is there is not used,
    empty where it is."""
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
    """Bytes a second that a link carries, as it was measured in this world; None where it was not. Between hosts where
    there are several, else within this one."""
    try:
        found = msgspec.json.decode(_read(path_of(world)), type=_File)
    except (OSError, ValueError):
        return None
    seconds = found.model.get("beta" if world.cross_size > 1 else "local_beta", 0.0)
    return 1 / seconds if found.world == world and seconds > 0 else None


def checked(tuning: dict[str, int]) -> str:
    """The sizes as text. Raises ValueError naming one that the engine does not accept."""
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
    """Keeps the sizes, in a file that only this user can read and write; a reader sees the old one or the new one.

    ``measured``, ``model``: seconds behind the choice and parameters of the cost model, for people. Raises
    ValueError for a size that the engine does not accept, OSError where the directory cannot be written.
    """
    import tempfile  # brings a good part of the standard library along, which workers that start have no use for

    checked(tuning)
    path = path_of(world)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = msgspec.json.format(msgspec.json.encode(_File(FORMAT, world, tuning, measured or {}, model or {})), indent=1)
    handle, temporary = tempfile.mkstemp(prefix=".tuning-", dir=path.parent)  # of mode 0600
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
    """Raises ValueError for a file that another user could have written."""
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
