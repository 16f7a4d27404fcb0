"""Checks of arguments to functions that start jobs, and how messages name them. Pure, except for warnings."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from horovod.common.contract.log import warn_user


def integer(name: str, value: Any, least: int) -> int:
    """Return the value. Raises ValueError naming it unless it is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return value


def seconds(name: str, value: Any, most: float = sys.float_info.max) -> float:
    """Return the value as float. Raises ValueError naming it unless it is a number above 0 and at most `most`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
        finite, limit = ("finite ", "") if most == sys.float_info.max else ("", f" and at most {most:.0f}")
        raise ValueError(f"{name} must be a {finite}number of seconds above 0{limit}, got {value!r}")
    return float(value)


def interfaces(name: str, value: Any) -> list[str]:
    """Return names of network interfaces.

    Args:
        name: Name of the argument, for messages.
        value: A collection of names, a string of names separated by commas, or None for no names.

    Raises:
        ValueError: The value is none of these.
    """
    names = value.split(",") if isinstance(value, str) else [] if value is None else value
    if not isinstance(names, Collection) or not all(isinstance(each, str) and each for each in names):
        raise ValueError(f"{name} must be names of network interfaces, got {value!r}")
    return list(names) if isinstance(names, Sequence) else sorted(names)


def renamed(old: str, new: str, value: Any) -> None:
    """Issue a DeprecationWarning if an argument was given by its old name, that is, if `value` is not None."""
    if value is not None:
        warn_user(f"{old} is deprecated: use {new}", DeprecationWarning)


# Names of settings in messages: flags of horovodrun, or arguments of a function that starts jobs. Pure.


@dataclass(frozen=True)
class Names:
    """Names by which the caller of a job sets its values; empty where the caller cannot set one.

    Attributes:
        start: Number of workers at the start.
        least: Fewest workers.
        most: Most workers.
        resets: How often the members may change.
        timeout: Seconds without enough workers.
        cooldown: Range of seconds for which a failed host is barred.
        start_timeout: Seconds for the start.
        script: Discovery script.
        slots: Slots of hosts for which the script prints none.
    """

    start: str
    least: str
    most: str
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
"""Names in functions that start jobs on a cluster."""
HOROVOD_RUN = replace(
    ARGUMENTS,
    timeout="HOROVOD_ELASTIC_TIMEOUT",
    start_timeout="start_timeout",
    script="host_discovery_script",
    slots="slots",
)
"""Names of the arguments of `horovod.run`."""
DISCOVERY = replace(ARGUMENTS, script="discovery_script", slots="slots")
"""Names in `HostDiscoveryScript`."""
