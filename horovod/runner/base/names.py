"""What sentences call what the caller of a job can set: flags of horovodrun, or arguments of what starts it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Names:
    """Of the workers at the start, the least and the most of them, how often they may change, the seconds without
    enough of them, the range for which a host is left alone, the seconds for a start, the script that finds hosts, and
    the slots of hosts of which it does not tell them. Empty: the caller cannot set it."""

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
"""Of functions that start jobs on a cluster."""
HOROVOD_RUN = replace(
    ARGUMENTS,
    timeout="HOROVOD_ELASTIC_TIMEOUT",
    start_timeout="start_timeout",
    script="host_discovery_script",
    slots="slots",
)
"""Of `horovod.run`."""
DISCOVERY = replace(ARGUMENTS, script="discovery_script", slots="slots")
"""Of `HostDiscoveryScript`."""
