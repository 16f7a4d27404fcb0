"""Names of settings in messages: flags of horovodrun, or arguments of a function that starts jobs. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace


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
