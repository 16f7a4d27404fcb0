"""Which hosts there are, in the types that programs written for Horovod know.

The launcher itself runs the script without waiting (`script`), and who is barred decides `cooldown`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from horovod.common.contract.host_updates import HostUpdateResult
from horovod.runner.base.names import DISCOVERY, FLAGS, Names
from horovod.runner.elastic.cooldown import LONGEST, SHORTEST, Blacklist, check_range
from horovod.runner.elastic.script import ScriptRun

DEFAULT_COOLDOWN_LOWER_LIMIT_SECONDS = SHORTEST
DEFAULT_COOLDOWN_UPPER_LIMIT_SECONDS = LONGEST

_ONE = "host"


class HostState:
    """Whether one host is barred because workers have failed there. May be used from several threads."""

    def __init__(self, cooldown_range: tuple[float, float] | None = None) -> None:
        """`cooldown_range`: (MIN, MAX) in s; None: a host that is barred stays so. Raises ValueError outside 1 to
        3600."""
        self._list = Blacklist(check_range(cooldown_range))
        self._event = threading.Event()
        self._lock = threading.Lock()

    def get_event(self) -> threading.Event:
        """Is set when the host is barred."""
        return self._event

    def blacklist(self) -> None:
        """A worker has failed there."""
        with self._lock:
            self._list.failed(_ONE, time.monotonic())
            self._event.set()

    def is_blacklisted(self) -> bool:
        """Does it get no workers now?"""
        with self._lock:
            return self._list.bars(_ONE, time.monotonic())


class DiscoveredHosts:
    """Hosts that were found; never changed in place."""

    def __init__(self, host_slots: Mapping[str, int], host_assignment_order: Sequence[str]) -> None:
        """`host_slots`: slots by host; `host_assignment_order`: hosts, in the order in which they get ranks."""
        self._slots = dict(host_slots)
        self._order = list(host_assignment_order)

    @property
    def host_slots(self) -> dict[str, int]:
        return dict(self._slots)

    @property
    def available_hosts(self) -> set[str]:
        return set(self._slots)

    @property
    def host_assignment_order(self) -> list[str]:
        return list(self._order)

    def get_slots(self, host: str) -> int:
        """0 for a host that is not among them."""
        return self._slots.get(host, 0)

    def count_available_slots(self) -> int:
        return sum(self._slots.values())

    def __repr__(self) -> str:
        return f"DiscoveredHosts({self._slots}, {self._order})"


class HostDiscovery:
    """What finds hosts. A program may give a subclass of its own."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Slots by host, in the order in which hosts are to be used."""
        raise NotImplementedError


class HostDiscoveryScript(HostDiscovery):
    """An executable that prints one host a line, `name` or `name:slots`."""

    def __init__(self, discovery_script: str, slots: int | None) -> None:
        """`slots`: of hosts that do not tell theirs; None: all have to."""
        self._script = discovery_script
        self._slots = slots

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Runs it once. Raises ValueError saying what is wrong with the file or with what it printed, also when it
        takes longer than 10 s."""
        return ScriptRun(self._script, self._slots, names=DISCOVERY).finish()


class FixedHosts(HostDiscovery):
    """The same hosts always."""

    def __init__(self, host_slots: Mapping[str, int]) -> None:
        self._slots = dict(host_slots)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        return dict(self._slots)


def check_fixed(slots: Mapping[str, int], names: Names = FLAGS) -> Mapping[str, int]:
    """Hosts that an elastic job without discovery may have: with one of them there would be nothing left after its
    first failure. Raises ValueError naming the number."""
    if len(slots) < 2:
        raise ValueError(
            f"an elastic job with fixed hosts ({names.least}) has {len(slots)} of them, accepted are at least 2; with "
            f"{names.script} one host will do"
        )
    return slots


class HostManager:
    """The hosts that can be used: found, and not barred. May be used from several threads."""

    def __init__(self, discovery: HostDiscovery, cooldown_range: tuple[float, float] | None = None) -> None:
        """`cooldown_range`: as for `HostState`."""
        self._discovery = discovery
        self._list = Blacklist(check_range(cooldown_range))
        self._lock = threading.Lock()
        self._slots: dict[str, int] = {}
        self._order: list[str] = []  # in which hosts were seen first
        self._last: dict[str, int] = {}  # what could be used at the last look

    @property
    def current_hosts(self) -> DiscoveredHosts:
        with self._lock:
            slots, order = self._usable()
        return DiscoveredHosts(slots, order)

    def update_available_hosts(self) -> HostUpdateResult:
        """Looks once; returns how the hosts that can be used have changed since the last look. A slot less is a
        removal.

        Raises what the discovery raises.
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
        """A worker has failed there."""
        with self._lock:
            self._list.failed(host, time.monotonic())

    def is_blacklisted(self, host: str) -> bool:
        with self._lock:
            return self._list.bars(host, time.monotonic())


def compare(before: Mapping[str, int], after: Mapping[str, int]) -> HostUpdateResult:
    """How the slots of hosts have changed."""
    update = HostUpdateResult.no_update
    for host in {*before, *after}:
        if after.get(host, 0) > before.get(host, 0):
            update |= HostUpdateResult.added
        elif after.get(host, 0) < before.get(host, 0):
            update |= HostUpdateResult.removed
    return update
