"""Classes for hosts and slots, under the names that the original Horovod documents.

They are implemented in `plan.hosts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from horovod.runner.plan import hosts as plan


@dataclass
class HostInfo:
    """A host and its number of slots."""

    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        """Parse `name:slots` into a host. Raises ValueError if the text is invalid."""
        return parse_hosts(host_string)[0]


@dataclass
class SlotInfo:
    """Rank of one process, with its local rank, cross rank and the corresponding sizes."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int


INVALID_SLOT_INFO = SlotInfo(hostname="", rank=-1, local_rank=-1, cross_rank=-1, size=-1, local_size=-1, cross_size=-1)
"""Value for a process that is not in the job, or not any more."""


def parse_host_files(filename: str) -> str:
    """Read the hosts that a host file lists.

    Returns:
        The hosts in the form `name:slots,...`.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If a line is invalid. The message contains the path and line number.
    """
    found = plan.parse_hostfile(Path(filename).read_text(encoding="utf-8"), filename)
    return ",".join(f"{host.name}:{host.slots}" for host in found)


def parse_hosts_and_slots(hosts: str) -> tuple[list[str], dict[str, int]]:
    """Parse hosts in the form `name:slots,...`.

    Returns:
        Names of the hosts, and the number of slots by name.

    Raises:
        ValueError: If the text is invalid.
    """
    found = plan.parse_hosts(hosts)
    return [host.name for host in found], {host.name: host.slots for host in found}


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """Parse `name:slots,...` into a list of hosts. Raises ValueError if an entry is invalid."""
    return [HostInfo(host.name, host.slots) for host in plan.parse_hosts(hosts_string)]


def get_host_assignments(
    hosts: Sequence[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """Assign ranks to hosts and return the slots in rank order.

    Args:
        hosts: Available hosts.
        min_num_proc: Minimum number of processes.
        max_num_proc: Maximum number of processes, or None to use all slots.

    Returns:
        List of at most `max_num_proc` slots.

    Raises:
        ValueError: If the hosts have fewer than `min_num_proc` slots.
    """
    given = [plan.Host(host.hostname, host.slots) for host in hosts]
    available = sum(host.slots for host in given)
    size = available if max_num_proc is None else min(available, max_num_proc)
    assigned = plan.assign(given, max(size, min_num_proc))
    return [
        SlotInfo(
            hostname=slot.hostname,
            rank=slot.rank,
            local_rank=slot.local_rank,
            cross_rank=slot.cross_rank,
            size=slot.size,
            local_size=slot.local_size,
            cross_size=slot.cross_size,
        )
        for slot in assigned
    ]
