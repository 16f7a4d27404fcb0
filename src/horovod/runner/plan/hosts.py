"""Hosts, slots and ranks, and the networks that hosts share. Only `is_local` performs I/O."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from horovod.common.network.interfaces import Interface
from horovod.runner.base.job_result import LaunchError

_HOST_RULES = "a name has letters, digits, '_', '.' and '-' (or is [IPv6]), slots are at least 1"
_HOSTFILE_FORM = "'name slots=N', 'name:N' or, for one slot, 'name'"
_HOSTFILE_RULES = (
    "N is at least 1; 'python=PATH' may follow, the interpreter on that host; 'max_slots=N' is ignored; blank lines "
    "and lines that begin with # are skipped"
)
_NAME = r"(?:[\w.-]+|\[[0-9A-Fa-f:.%\w]+\])"
# Limit the number of digits, because int() rejects very long numbers.
_HOST = re.compile(rf"({_NAME}):([0-9]{{1,9}})", re.ASCII)
_HOSTFILE_LINE = re.compile(rf"({_NAME})(?::([0-9]+))?((?:\s+[\w-]+\s*=\s*\S+)*)", re.ASCII)
_HOSTFILE_OPTION = re.compile(r"\s+([\w-]+)\s*=\s*(\S+)", re.ASCII)


@dataclass(frozen=True)
class Host:
    """Machine on which ranks can run.

    Attributes:
        name: Name or address of the host.
        slots: Maximum number of ranks on the host.
        python: Python interpreter on the host, or an empty string for the same path as the launcher's.
    """

    name: str
    slots: int
    python: str = ""


@dataclass(frozen=True)
class Slot:
    """Position of one worker: its rank in the job, its rank on its host, and its rank among the hosts."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    hostname: str
    python: str = ""


def _merge(entries: Sequence[Host]) -> list[Host]:
    """Merge repeated hosts. A host keeps its first position and gets the sum of its slots."""
    hosts: dict[str, Host] = {}
    for host in entries:
        before = hosts.get(host.name, Host(host.name, 0))
        hosts[host.name] = Host(host.name, before.slots + host.slots, before.python or host.python)
    return list(hosts.values())


def parse_hosts(text: str) -> list[Host]:
    """Parse `name:slots[,...]` into hosts. Raises LaunchError if an entry is invalid."""
    hosts = []
    for entry in text.split(","):
        match = _HOST.fullmatch(entry.strip())
        if match is None or int(match[2]) < 1:
            raise LaunchError(
                f"hosts must be name:slots[,name:slots...], got {entry.strip()!r} in {text!r}; {_HOST_RULES}"
            )
        hosts.append(Host(match[1].strip("[]"), int(match[2])))
    return _merge(hosts)


def parse_hostfile(text: str, path: str) -> list[Host]:
    """Parse the text of a host file. `path` is used only in error messages. Raises LaunchError if a line is invalid."""
    hosts = []
    # Maps each host to its interpreter, and to the number of the line that specifies it
    interpreters: dict[str, tuple[str, int]] = {}
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        content = line.split("#", 1)[0].strip()
        if not content:
            continue
        host = _host_of_line(content)
        if host is None:
            raise LaunchError(f"{path}, line {number} must be {_HOSTFILE_FORM}, got {content!r}; {_HOSTFILE_RULES}")
        name, python = host.name, host.python
        if python:
            # Each host has only one agent, which starts all ranks with the same interpreter.
            before, where = interpreters.setdefault(name, (python, number))
            if before != python:
                raise LaunchError(
                    f"{path}, line {number}: python= of host {name!r} must be {before}, as in line {where}, got "
                    f"{python}; a host has one interpreter"
                )
        hosts.append(host)
    if not hosts:
        raise LaunchError(
            f"{path} must name at least one host, got none; a line is {_HOSTFILE_FORM}; {_HOSTFILE_RULES}"
        )
    return _merge(hosts)


def _host_of_line(content: str) -> Host | None:
    """Parse a line of a host file. Return None if the line is invalid."""
    match = _HOSTFILE_LINE.fullmatch(content)
    if match is None:
        return None
    options = [(key.replace("-", "_"), value) for key, value in _HOSTFILE_OPTION.findall(match[3])]
    options += [("slots", match[2])] if match[2] else []
    values = dict(options)
    numbers = [values[key] for key in ("slots", "max_slots") if key in values]
    repeated = len(values) < len(options)
    if repeated or not values.keys() <= {"slots", "max_slots", "python"} or not all(map(_is_count, numbers)):
        return None
    return Host(match[1].strip("[]"), int(values.get("slots", "1")), values.get("python", ""))


def _is_count(text: str) -> bool:
    return re.fullmatch("[0-9]{1,9}", text) is not None and int(text) >= 1


def assign(hosts: Sequence[Host], size: int) -> list[Slot]:
    """Assign ranks 0 to size - 1 to the hosts in order, filling each host before the next.

    The cross group of a worker consists of all workers with the same local rank.

    Returns:
        Slots in rank order.

    Raises:
        LaunchError: If the hosts have fewer slots than `size`.
    """
    available = sum(host.slots for host in hosts)
    if available < size:
        listed = ",".join(f"{host.name}:{host.slots}" for host in hosts)
        raise LaunchError(f"{size} processes asked for, but the hosts {listed} have only {available} slots in total")
    counts: list[tuple[Host, int]] = []
    left = size
    for host in hosts:
        if left > 0:
            counts.append((host, min(host.slots, left)))
            left -= counts[-1][1]
    slots: list[Slot] = []
    for host, count in counts:
        for local_rank in range(count):
            peers = [other for other, n in counts if n > local_rank]
            place = (len(slots), size, local_rank, count, peers.index(host), len(peers))
            slots.append(Slot(*place, host.name, host.python))
    return slots


def is_local(name: str) -> bool:
    """Return True if the name refers to this machine.

    Return False if the name cannot be resolved, because it can be an alias in ssh's configuration.
    """
    if name.lower() in ("localhost", "127.0.0.1", "::1", socket.gethostname().lower()):
        return True
    try:
        addresses = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return any(_is_own_address(family, address) for family, _, _, _, address in addresses)


def _is_own_address(family: int, address: tuple[str | int, ...] | tuple[int, bytes]) -> bool:
    """Return True if the address belongs to this machine, so that a socket can be bound to it."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


class Machines:
    """Table of unique names for machines. If several machines have the same host name, a number is appended."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # Maps machine identities to unique names

    def name(self, machine: str, hostname: str) -> str:
        """Return the unique name of a machine, which never changes."""
        if machine not in self._names:
            taken, name, count = set(self._names.values()), hostname, 1
            while name in taken:
                count += 1
                name = f"{hostname}#{count}"
            self._names[machine] = name
        return self._names[machine]


def place(machines: Mapping[int, str]) -> list[tuple[int, Slot]]:
    """Assign one rank to each process, and return (process number, slot) pairs in rank order.

    The ranks of a machine are consecutive, in the order of their process numbers. Machines are ordered by their lowest
    process number, so process 0 gets rank 0. `machines` maps process numbers to machine names.
    """
    numbers: dict[str, list[int]] = {}
    for number in sorted(machines):
        numbers.setdefault(machines[number], []).append(number)
    ordered: Sequence[int] = [number for group in numbers.values() for number in group]
    slots = assign([Host(name, len(group)) for name, group in numbers.items()], len(ordered))
    return list(zip(ordered, slots, strict=True))


Interfaces = Sequence[Interface]


def common_interfaces(hosts: Mapping[str, Interfaces]) -> dict[str, str]:
    """Return each host's interface on the best network that all hosts share, or {} if there is none."""
    return {host: interface.name for host, (interface, _) in _common(hosts).items()}


def common_addresses(hosts: Mapping[str, Interfaces]) -> dict[str, str]:
    """Return each host's address on the best network that all hosts share, or {} if there is none."""
    return {host: address for host, (_, address) in _common(hosts).items()}


def _common(hosts: Mapping[str, Interfaces]) -> dict[str, tuple[Interface, str]]:
    """Return each host's interface and address on the best network that all hosts share, or {} if there is none.

    Networks of physical devices are preferred to those of bridges and tunnels, then fast networks to slow ones, and
    then IPv4 to IPv6. A network in which two machines have the same address, such as that of docker0, is ignored,
    because it does not connect them.
    """
    machines = {_identity(interfaces): interfaces for interfaces in hosts.values()}
    best: tuple[tuple[bool, int, bool], str] | None = None
    for _, address, network in _places(next(iter(machines.values()), ())):
        entries = [_entry(interfaces, network) for interfaces in machines.values()]
        if any(entry is None for entry in entries):
            continue
        found = [entry for entry in entries if entry is not None]
        if len({text for _, text in found}) < len(found):
            continue
        every = [entry[0] for entry in found]
        rank = (all(i.physical for i in every), min(i.speed for i in every), ":" not in address)
        if best is None or rank > best[0]:
            best = (rank, network)
    if best is None:
        return {}
    chosen = {host: _entry(interfaces, best[1]) for host, interfaces in hosts.items()}
    return {host: entry for host, entry in chosen.items() if entry is not None}


def _places(interfaces: Interfaces) -> Iterator[tuple[Interface, str, str]]:
    for interface in interfaces:
        if interface.up and not interface.loopback:
            for address in interface.addresses:
                yield interface, address.text, str(address.network)


def _entry(interfaces: Interfaces, network: str) -> tuple[Interface, str] | None:
    return next(((i, address) for i, address, of in _places(interfaces) if of == network), None)


def _identity(interfaces: Interfaces) -> frozenset[str]:
    """Return all addresses of a host as a set, which is the same for two host names of one machine."""
    return frozenset(address for _, address, _ in _places(interfaces))
