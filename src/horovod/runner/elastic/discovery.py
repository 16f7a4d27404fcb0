"""Host discovery through the classes of Horovod's documented Python API.

The launcher does not use these classes. It runs the discovery script without blocking (`script`), and `limits` decides
which hosts are excluded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from horovod.common.contract.membership import HostUpdateResult
from horovod.runner.base.arguments import DISCOVERY, FLAGS, Names
from horovod.runner.elastic.limits import LONGEST, SHORTEST, Blacklist, check_range
from horovod.runner.elastic.script import ScriptRun

DEFAULT_COOLDOWN_LOWER_LIMIT_SECONDS = SHORTEST
DEFAULT_COOLDOWN_UPPER_LIMIT_SECONDS = LONGEST

_ONE = "host"


class HostState:
    """State of one host, which is excluded for a cooldown time after a worker failed on it. Thread-safe."""

    def __init__(self, cooldown_range: tuple[float, float] | None = None) -> None:
        """Create the state of a host that is not excluded.

        Args:
            cooldown_range: Minimum and maximum seconds for which the host is excluded after a failure. None excludes it
                permanently.

        Raises:
            ValueError: If the range is not within 1 to 3600 seconds.
        """
        self._list = Blacklist(check_range(cooldown_range))
        self._event = threading.Event()
        self._lock = threading.Lock()

    def get_event(self) -> threading.Event:
        """Return an event that is set once this host has been excluded."""
        return self._event

    def blacklist(self) -> None:
        """Exclude the host, because a worker failed on it."""
        with self._lock:
            self._list.failed(_ONE, time.monotonic())
            self._event.set()

    def is_blacklisted(self) -> bool:
        """Return True if the host is currently excluded."""
        with self._lock:
            return self._list.bars(_ONE, time.monotonic())


class DiscoveredHosts:
    """Discovered hosts and their slot counts. Immutable."""

    def __init__(self, host_slots: Mapping[str, int], host_assignment_order: Sequence[str]) -> None:
        """Store the slots of each host, and the order in which the hosts get ranks."""
        self._slots = dict(host_slots)
        self._order = list(host_assignment_order)

    @property
    def host_slots(self) -> dict[str, int]:
        """Mapping from host names to slot counts."""
        return dict(self._slots)

    @property
    def available_hosts(self) -> set[str]:
        """Names of the discovered hosts."""
        return set(self._slots)

    @property
    def host_assignment_order(self) -> list[str]:
        """Hosts in the order in which they receive ranks."""
        return list(self._order)

    def get_slots(self, host: str) -> int:
        """Return the number of slots of a host, or 0 if the host is unknown."""
        return self._slots.get(host, 0)

    def count_available_slots(self) -> int:
        """Return the total number of slots of all hosts."""
        return sum(self._slots.values())

    def __repr__(self) -> str:
        return f"DiscoveredHosts({self._slots}, {self._order})"


class HostDiscovery:
    """Base class for host discovery. Users can derive their own classes from it."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Return the number of slots on each available host, in order of preference."""
        raise NotImplementedError


class HostDiscoveryScript(HostDiscovery):
    """Host discovery by a script that prints one host per line, as `name` or `name:slots`."""

    def __init__(self, discovery_script: str, slots: int | None) -> None:
        """Store the path of the script.

        `slots` is used for hosts that the script prints without slots. If it is None, such lines are errors.
        """
        self._script = discovery_script
        self._slots = slots

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Run the script once, with a time limit.

        Returns:
            Number of slots on each host.

        Raises:
            ValueError: If the script cannot be run, takes longer than 10 s, or prints an invalid line.
        """
        return ScriptRun(self._script, self._slots, names=DISCOVERY).finish()


class FixedHosts(HostDiscovery):
    """Host discovery that always returns the same hosts."""

    def __init__(self, host_slots: Mapping[str, int]) -> None:
        self._slots = dict(host_slots)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        return dict(self._slots)


def check_fixed(slots: Mapping[str, int], names: Names = FLAGS) -> Mapping[str, int]:
    """Check that there are enough hosts for an elastic job without host discovery.

    With a single host, the first failure would leave no usable host.

    Returns:
        `slots` itself.

    Raises:
        ValueError: If there are fewer than two hosts.
    """
    if len(slots) < 2:
        raise ValueError(
            f"an elastic job with fixed hosts ({names.least}) must have at least 2 of them, got {len(slots)}; with "
            f"{names.script} one host is enough"
        )
    return slots


class HostManager:
    """Collection of the hosts that were discovered and are not excluded. Thread-safe."""

    def __init__(self, discovery: HostDiscovery, cooldown_range: tuple[float, float] | None = None) -> None:
        """Store the discovery object. `cooldown_range` has the same meaning as in `HostState`."""
        self._discovery = discovery
        self._list = Blacklist(check_range(cooldown_range))
        self._lock = threading.Lock()
        self._slots: dict[str, int] = {}
        # Names of the hosts, in the order in which they were first discovered
        self._order: list[str] = []
        self._last: dict[str, int] = {}  # Number of slots on each host that was usable at the last update

    @property
    def current_hosts(self) -> DiscoveredHosts:
        """Hosts that were usable at the last update."""
        with self._lock:
            slots, order = self._usable()
        return DiscoveredHosts(slots, order)

    def update_available_hosts(self) -> HostUpdateResult:
        """Run the discovery, and update the usable hosts.

        If a host has lost slots, the result includes `removed`. Exceptions from the discovery are not caught.

        Returns:
            How the usable hosts have changed since the last call.
        """
        found = self._discovery.find_available_hosts_and_slots()
        with self._lock:
            before = self._last
            self._order = [host for host in self._order if host in found]
            self._order += [host for host in found if host not in self._order]
            self._slots = dict(found)
            after, _ = self._usable()
            self._last = after
        return compare(before, after)

    def _usable(self) -> tuple[dict[str, int], list[str]]:
        now = time.monotonic()
        order = [host for host in self._order if not self._list.bars(host, now)]
        return {host: self._slots[host] for host in order}, order

    def blacklist(self, host: str) -> None:
        """Exclude the host, because a worker failed on it."""
        with self._lock:
            self._list.failed(host, time.monotonic())

    def is_blacklisted(self, host: str) -> bool:
        """Return True if the host is currently excluded."""
        with self._lock:
            return self._list.bars(host, time.monotonic())


def compare(before: Mapping[str, int], after: Mapping[str, int]) -> HostUpdateResult:
    """Return a HostUpdateResult that contains `added`, `removed` or both, depending on the changed slots."""
    update = HostUpdateResult.no_update
    for host in {*before, *after}:
        if after.get(host, 0) > before.get(host, 0):
            update |= HostUpdateResult.added
        elif after.get(host, 0) < before.get(host, 0):
            update |= HostUpdateResult.removed
    return update
