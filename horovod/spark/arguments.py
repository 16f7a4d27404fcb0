"""What `run` and `run_elastic` take, checked before anything is started."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from horovod.common.contract.settings import BY_NAME
from horovod.runner.cluster import Wishes

_TIMEOUT = "HOROVOD_SPARK_START_TIMEOUT"


def count(name: str, value: Any, default: int) -> int:
    """A number of processes. Raises ValueError naming it."""
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}, accepted is an integer of at least 1")
    return value


def start_timeout(value: Any) -> float:
    """Seconds; the variable's where None is given. Raises ValueError naming it."""
    if value is None:
        return float(BY_NAME[_TIMEOUT].parse(os.environ.get(_TIMEOUT, "")))  # type: ignore[arg-type]
    return seconds("start_timeout", value)


def seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ValueError(f"{name} is {value!r}, accepted is a number of seconds above 0")
    return float(value)


def interfaces(nics: Any) -> list[str]:
    """Their names. Raises ValueError for what is none."""
    names = nics.split(",") if isinstance(nics, str) else [] if nics is None else list(nics)
    if not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"nics is {nics!r}, accepted are names of network interfaces")
    return names if isinstance(nics, (str, Sequence)) else sorted(names)


def wishes(
    *,
    env: Mapping[str, str] | None,
    stdout: Any,
    stderr: Any,
    verbose: Any,
    nics: Collection[str] | str | None,
    timestamp: bool,
    timeout: float,
    executable: str | None = None,
) -> Wishes:
    """Raises TypeError and ValueError naming what cannot be accepted."""
    for name, stream in (("stdout", stdout), ("stderr", stderr)):
        if stream is not None and (not hasattr(stream, "write") or "b" in str(getattr(stream, "mode", ""))):
            raise TypeError(f"{name} is {stream!r}, accepted is a stream of text, such as open(path, 'w') returns")
    for key, value in (env or {}).items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise TypeError(f"env has {key!r}: {value!r}, accepted are strings")
    return Wishes(
        start_timeout=timeout,
        environ=dict(env or {}),
        executable=executable,
        nics=interfaces(nics),
        timestamp=bool(timestamp),
        verbose=int(verbose or 0) >= 2,
        stdout=stdout,
        stderr=stderr,
    )


def of_the_driver() -> dict[str, str]:
    """Variables of the driver that its tasks ask for."""
    return {name: value for name, value in os.environ.items() if name.startswith("HOROVOD_SPARK_")}


def ports() -> str:
    """On which the launcher may listen."""
    return os.environ.get("HOROVOD_PORT_RANGE", "")
