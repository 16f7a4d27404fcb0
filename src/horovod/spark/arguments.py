"""Validation of the arguments of `run` and `run_elastic`, before anything is started."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Mapping
from typing import Any

from horovod.common.contract.settings import BY_NAME
from horovod.runner.base.arguments import integer, interfaces, seconds
from horovod.runner.cluster import Wishes

_TIMEOUT = "HOROVOD_SPARK_START_TIMEOUT"


def count(name: str, value: Any, default: int) -> int:
    """Return `value` as a number of processes, or `default` for None.

    Raises:
        ValueError: If it is not an integer of at least 1. The message names the argument.
    """
    return default if value is None else integer(name, value, 1)


def start_timeout(value: Any) -> float:
    """Return the start timeout in seconds; for None, the value of HOROVOD_SPARK_START_TIMEOUT or its default.

    Raises:
        ValueError: If it is not a valid number of seconds. The message names the argument.
    """
    if value is None:
        return float(BY_NAME[_TIMEOUT].parse(os.environ.get(_TIMEOUT, "")))  # type: ignore[arg-type]
    return seconds("start_timeout", value)


def variables(env: Any) -> dict[str, str]:
    """Return the environment variables for the ranks.

    Raises:
        TypeError: If `env` is not a mapping of strings to strings.
    """
    if not isinstance(env, (Mapping, type(None))):
        raise TypeError(f"env is {env!r}, accepted is a mapping of names to values, both strings")
    for key, value in (env or {}).items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise TypeError(f"env has {key!r}: {value!r}, accepted are strings")
    return dict(env or {})


def _check_stream(name: str, stream: Any) -> None:
    takes_bytes = isinstance(stream, (io.RawIOBase, io.BufferedIOBase)) or "b" in str(getattr(stream, "mode", ""))
    if stream is not None and (takes_bytes or not hasattr(stream, "write")):
        raise TypeError(f"{name} is {stream!r}, accepted is a stream of text, such as open(path, 'w') returns")


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
    """Return the options of a job, validated.

    Raises:
        TypeError, ValueError: If an argument is invalid. The message names it.
    """
    _check_stream("stdout", stdout)
    _check_stream("stderr", stderr)
    if not isinstance(verbose, (int, type(None))):
        raise TypeError(f"verbose is {verbose!r}, accepted is an integer; 2 tells more of what the job does")
    return Wishes(
        start_timeout=timeout,
        environ=variables(env),
        executable=executable,
        nics=interfaces("nics", nics),
        timestamp=bool(timestamp),
        verbose=(verbose or 0) >= 2,
        stdout=stdout,
        stderr=stderr,
        handlers=("pyspark",),  # its SIGINT handler cancels all jobs of the driver, then raises KeyboardInterrupt
    )


def of_the_driver() -> dict[str, str]:
    """Return the driver's HOROVOD_SPARK_* variables, which its tasks need."""
    return {name: value for name, value in os.environ.items() if name.startswith("HOROVOD_SPARK_")}


def ports() -> str:
    """Return the range of ports on which the launcher may listen; empty means any port."""
    return os.environ.get("HOROVOD_PORT_RANGE", "")
