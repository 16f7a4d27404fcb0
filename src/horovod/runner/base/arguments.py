"""Argument checks for functions that start jobs, and the names that error messages use for the arguments."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from horovod.common.contract.log import warn_user


def integer(name: str, value: Any, least: int) -> int:
    """Return `value` if it is an integer greater than or equal to `least`.

    Raises:
        ValueError: If it is not. The message calls the argument `name`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return value


def seconds(name: str, value: Any, maximum: float = sys.float_info.max) -> float:
    """Return `value` as a float if it is above 0 and at most `maximum`.

    Raises:
        ValueError: If it is not. The message calls the argument `name`.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= maximum:
        finite, limit = ("finite ", "") if maximum == sys.float_info.max else ("", f" and at most {maximum:.0f}")
        raise ValueError(f"{name} must be a {finite}number of seconds above 0{limit}, got {value!r}")
    return float(value)


def interfaces(name: str, value: Any) -> list[str]:
    """Parse `value` into a list of network interface names.

    Args:
        name: Name of the argument, for error messages.
        value: Collection of names, comma-separated string of names, or None for no names.

    Raises:
        ValueError: If `value` is anything else.
    """
    names = value.split(",") if isinstance(value, str) else [] if value is None else value
    if not isinstance(names, Collection) or not all(isinstance(each, str) and each for each in names):
        raise ValueError(f"{name} must be names of network interfaces, got {value!r}")
    return list(names) if isinstance(names, Sequence) else sorted(names)


def renamed(old: str, new: str, value: Any) -> None:
    """Warn that an argument was renamed. Do nothing if `value` is None, because the old name was not used."""
    if value is not None:
        warn_user(f"{old} is deprecated: use {new}", DeprecationWarning)


@dataclass(frozen=True)
class Names:
    """Names that messages use for a job's settings, such as flags or arguments.

    A name is empty if the user cannot set the value.

    Attributes:
        start: Initial number of workers.
        least: Minimum number of workers.
        max_np: Maximum number of workers.
        resets: Maximum number of changes of the set of ranks.
        timeout: Seconds to wait for enough workers.
        cooldown: Initial and maximum seconds for which a failed host is excluded.
        start_timeout: Seconds within which the ranks must start.
        script: Discovery script.
        slots: Default number of slots, for hosts that the discovery script prints without a number.
    """

    start: str
    least: str
    max_np: str
    resets: str
    timeout: str
    cooldown: str
    start_timeout: str
    script: str
    slots: str


FLAGS = Names(
    "-np",
    "--min-np",
    "--max-np",
    "--reset-limit",
    "--elastic-timeout",
    "--blacklist-cooldown-range",
    "--start-timeout",
    "--host-discovery-script",
    "--slots-per-host",
)
ARGUMENTS = Names(
    "num_proc",
    "min_num_proc",
    "max_num_proc",
    "reset_limit",
    "elastic_timeout",
    "cooldown_range",
    "HOROVOD_START_TIMEOUT",
    "",
    "",
)
"""Argument names of functions that start jobs on a cluster."""
HOROVOD_RUN = replace(
    ARGUMENTS,
    timeout="HOROVOD_ELASTIC_TIMEOUT",
    start_timeout="start_timeout",
    script="host_discovery_script",
    slots="slots",
)
"""Argument names of `horovod.run`."""
DISCOVERY = replace(ARGUMENTS, script="discovery_script", slots="slots")
"""Argument names of `HostDiscoveryScript`."""
