"""Hosts, slots and ranks: pure functions from what the user wrote to who runs where."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from horovod.runner.base.errors import LaunchError

HOST_FORM = "name:slots[,name:slots...], a name of letters, digits, '_', '.' and '-' (or [IPv6]), slots at least 1"
HOSTFILE_FORM = (
    "a line 'name slots=N', 'name:N' or, for one slot, 'name', N at least 1, after which 'python=PATH' may name the "
    "interpreter on that host, and 'max_slots=N' is ignored; blank lines and lines that begin with # are skipped"
)
_NAME = r"(?:[\w.-]+|\[[0-9A-Fa-f:.%\w]+\])"
_HOST = re.compile(rf"({_NAME}):([0-9]{{1,9}})", re.ASCII)  # int refuses very many digits with words of its own
_HOSTFILE_LINE = re.compile(rf"({_NAME})(?::([0-9]+))?((?:\s+[\w-]+\s*=\s*\S+)*)", re.ASCII)
_HOSTFILE_OPTION = re.compile(r"\s+([\w-]+)\s*=\s*(\S+)", re.ASCII)


@dataclass(frozen=True)
class Host:
    """A machine and how many workers it may get. `python`: the interpreter there, empty for the launcher's."""

    name: str
    slots: int
    python: str = ""


@dataclass(frozen=True)
class Slot:
    """One worker's place: its rank in the job, among the workers of its host and among the hosts."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    hostname: str
    python: str = ""


def _merge(given: Sequence[Host]) -> list[Host]:
    """A host named twice has the sum of its slots and keeps its first place."""
    hosts: dict[str, Host] = {}
    for host in given:
        before = hosts.get(host.name, Host(host.name, 0))
        hosts[host.name] = Host(host.name, before.slots + host.slots, before.python or host.python)
    return list(hosts.values())


def parse_hosts(text: str) -> list[Host]:
    """Read `name:slots[,...]`. Raises LaunchError (a ValueError) that names the wrong entry and shows the form."""
    given = []
    for entry in text.split(","):
        match = _HOST.fullmatch(entry.strip())
        if match is None or int(match[2]) < 1:
            raise LaunchError(f"hosts {text!r}: {entry.strip()!r} is not accepted; expected {HOST_FORM}")
        given.append(Host(match[1].strip("[]"), int(match[2])))
    return _merge(given)


def parse_hostfile(text: str, path: str) -> list[Host]:
    """Read the text of a host file; `path` is only for the messages of the LaunchError."""
    given = []
    interpreters: dict[str, tuple[str, int]] = {}  # host -> the one it was given, in this line
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        content = line.split("#", 1)[0].strip()
        if not content:
            continue
        host = _host_of_line(content)
        if host is None:
            raise LaunchError(f"{path}, line {number}: {content!r} is not accepted; expected {HOSTFILE_FORM}")
        name, python = host.name, host.python
        if python:
            # The ranks of a host have one agent, and it starts all of them.
            before, where = interpreters.setdefault(name, (python, number))
            if before != python:
                raise LaunchError(
                    f"{path}, line {number}: host {name!r} with python={python}, but line {where} names {before}; "
                    "accepted is one interpreter for a host"
                )
        given.append(host)
    if not given:
        raise LaunchError(f"{path}: names no host; expected {HOSTFILE_FORM}")
    return _merge(given)


def _host_of_line(content: str) -> Host | None:
    """The host that a line of a host file describes; None if the line has another form."""
    match = _HOSTFILE_LINE.fullmatch(content)
    if match is None:
        return None
    options = [(key.replace("-", "_"), value) for key, value in _HOSTFILE_OPTION.findall(match[3])]
    options += [("slots", match[2])] if match[2] else []
    told = dict(options)
    numbers = [told[key] for key in ("slots", "max_slots") if key in told]
    repeated = len(told) < len(options)
    if repeated or not told.keys() <= {"slots", "max_slots", "python"} or not all(map(_is_count, numbers)):
        return None
    return Host(match[1].strip("[]"), int(told.get("slots", "1")), told.get("python", ""))


def _is_count(text: str) -> bool:
    return re.fullmatch("[0-9]{1,9}", text) is not None and int(text) >= 1


def assign(hosts: Sequence[Host], size: int) -> list[Slot]:
    """Give ranks 0..size-1 to the hosts in their order, each filled before the next; the result is ordered by rank.

    The cross group of a worker is made of the workers with its local rank, one on each host that has so many.
    Raises LaunchError when the hosts have fewer slots than `size`.
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
    """Does the name mean this machine? One that cannot be resolved here may be an alias that only ssh knows."""
    if name.lower() in ("localhost", "127.0.0.1", "::1", socket.gethostname().lower()):
        return True
    try:
        addresses = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return any(_is_own_address(family, address) for family, _, _, _, address in addresses)


def _is_own_address(family: int, address: tuple[str | int, ...] | tuple[int, bytes]) -> bool:
    """A socket binds only to an address of this machine: shorter and surer than to list the interfaces."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True
