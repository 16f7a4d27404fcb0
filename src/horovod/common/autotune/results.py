"""Cached autotune results: one JSON file per combination of model, hosts and settings."""

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from horovod.common.contract.private_files import cache_directory, read_private, write_private

FORMAT = 1
_LIMIT = 65536  # maximum size of a result file in bytes
_PREFIX = "autotune-"


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Key of a cached result: the properties that two jobs must share to use the same result."""

    model: str
    """Fingerprint of the tensors that a step reduces: a hash of their names, dtypes and shapes."""
    hosts: list[str]
    """Host name of each rank."""
    settings: dict[str, str]
    """Variables that the user has set and that all ranks must agree on, by name."""


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Best values found by one job's search."""

    format: int
    key: Key
    values: dict[str, int]
    step_ms: float
    """Step time with the values, in ms."""
    gain: float
    """Gain over the initial values, as a fraction of the step."""
    step_bytes: int
    """Bytes that a step reduces on each rank."""
    time: float
    """Time at which the result was found, in seconds since 1970."""


def path_of(key: Key) -> Path:
    """Return the path of the result file for ``key``."""
    digest = hashlib.sha256(msgspec.json.encode(key, order="sorted")).hexdigest()[:24]
    return cache_directory() / f"{_PREFIX}{digest}.json"


def load(key: Key) -> Result | None:
    """Return the stored result for ``key``, or None if no usable result is stored."""
    result = _read(path_of(key))
    return result if result is not None and result.key == key else None


def _read(path: Path) -> Result | None:
    try:
        result = msgspec.json.decode(read_private(path, _LIMIT), type=Result)
    except (OSError, ValueError):
        return None
    return result if result.format == FORMAT else None


def store(result: Result) -> Path:
    """Store a result in a file that only this user can access.

    Returns:
        Path of the file.

    Raises:
        OSError: If the file cannot be written.
    """
    path = path_of(result.key)
    write_private(path, msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    return path


def stored() -> list[Result]:
    """Return all readable results, newest first."""
    found = [_read(path) for path in cache_directory().glob(f"{_PREFIX}*.json")]
    return sorted((result for result in found if result is not None), key=lambda result: -result.time)


def table(results: Sequence[Result]) -> str:
    """Format the results as a table for the terminal."""
    if not results:
        return f"no results of autotune are stored in {cache_directory()}; horovodrun --autotune stores one"
    lines = []
    for result in results:
        hosts = {host: result.key.hosts.count(host) for host in result.key.hosts}
        where = ",".join(f"{host}:{count}" for host, count in hosts.items())
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(result.time))
        lines += [
            f"{when}  {where}  steps that reduce {result.step_bytes / 2**20:.1f} MiB (model {result.key.model[:8]}): "
            f"{result.step_ms:.2f} ms, {result.gain:.1%} less than initially",
            "  " + ", ".join(f"{name}={value}" for name, value in result.values.items()),
        ]
        if result.key.settings:
            lines.append("  with " + ", ".join(f"{name}={value}" for name, value in result.key.settings.items()))
    return "\n".join([*lines, f"stored in {cache_directory()}; delete a file to forget its result"])
