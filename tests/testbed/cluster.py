"""Hosts, the network between them, and network faults. The fixtures are in tests/conftest.py."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping

from tests.testbed.hosts import HOME, Host, start_hosts
from tests.testbed.network import (
    BedError,
    Switch,
    drop_packets_from,
    filter_new_connections,
    hosts_file,
    lift_limit,
    limit_rate,
    open_network,
    receive_again,
)

DESK = 254

_REPORT = re.compile(
    r"/horovod-\d+/\d{8}-\d{6}-\d+/(hang\.txt|(recorder|stacks)\.rank\d+\.(jsonl|txt)(\.part\d+-\d+)?)$"
)


class Cluster:
    """`size` hosts host1 ... hostN and a launch machine (desk) on one network.

    Hosts are given by number, 1 to N; the desk is 254. Raises BedError if the machine cannot provide them;
    `hosts.why_not()` tells that beforehand.
    """

    def __init__(self, size: int, *, ipv6: bool = True, shm: str = "1g") -> None:
        self._names = {**{f"host{i}": i for i in range(1, size + 1)}, "desk": DESK}
        self._ipv6 = ipv6
        self._added: list[str] = []  # bridges and ports to remove at the next reset
        self._next = 1  # number of the next network
        self._cut: set[int] = set()
        self._down: set[int] = set()
        self._filtered: set[int] = set()
        self._deaf: set[int] = set()  # hosts that drop packets of some other host
        self._slow: set[int] = set()
        self._hosts: dict[int, Host] = {}
        self._switch = Switch()
        try:
            self._hosts = {host.number: host for host in start_hosts(self._names, shm)}
            self._switch.add_bridge("main")
            self._switch.add_bridge("cut")
            for host in self._hosts.values():
                addresses = [f"{host.address}/24", *([f"{host.address6}/64"] if ipv6 else [])]
                self._switch.plug("main", host.pid, self._port(host.number), "eth0", addresses)
        except BaseException:
            self.close()
            raise
        self._files = {number: host.files() for number, host in self._hosts.items()}
        self._homes = {
            (number, name): host.path(name).read_bytes()
            for number, host in self._hosts.items()
            for name in self._files[number]
            if name.startswith(HOME)
        }

    def host(self, number: int) -> Host:
        return self._hosts[number]

    @property
    def hosts(self) -> list[Host]:
        """Return host1 ... hostN."""
        return [host for host in self._hosts.values() if host.number != DESK]

    @property
    def desk(self) -> Host:
        """A machine outside the set of hosts, without a login server, from which jobs can be started."""
        return self._hosts[DESK]

    @property
    def launcher(self) -> Host:
        """The host on which jobs are started by default: host1."""
        return self._hosts[1]

    def _port(self, number: int) -> str:
        return f"h{number}"

    # Network faults; `heal` or `reset` undoes them.

    def partition(self, *numbers: int) -> None:
        """Cut these hosts off from all others, not from one another. Packets are dropped; links stay up."""
        for number in numbers:
            self._switch.move(self._port(number), "cut")
            self._cut.add(number)

    def separate(self, one: int, other: int) -> None:
        """Cut the path between two hosts, which both still reach all others. Packets are dropped."""
        for here, target in ((one, other), (other, one)):
            far = self.host(target)
            drop_packets_from(self.host(here).pid, [far.address, *([far.address6] if self._ipv6 else [])])
            self._deaf.add(here)

    def link_down(self, number: int) -> None:
        """Unplug the host's cable: the host sees its link go down."""
        self._switch.set_link(self._port(number), False)
        self._down.add(number)

    def slow_link(self, number: int, rate: str) -> None:
        """Limit the host's bandwidth to `rate` in each direction, such as "100mbit"."""
        limit_rate(self.host(number).pid, "eth0", rate)
        limit_rate(self._switch.pid, self._port(number), rate)
        self._slow.add(number)

    def firewall(
        self, number: int, *, incoming: bool = True, allowed: tuple[int, ...] = (22,), refuse: bool = False
    ) -> None:
        """Drop (or refuse) new TCP connections to this host, or from it, except to the allowed ports."""
        self._filtered.add(number)
        filter_new_connections(self.host(number).pid, incoming=incoming, allowed=allowed, refuse=refuse)

    def heal(self) -> None:
        """Undo all network faults; added networks stay."""
        for number in sorted(self._cut):
            self._switch.move(self._port(number), "main")
        for number in sorted(self._down):
            self._switch.set_link(self._port(number), True)
        for number in sorted(self._filtered):
            open_network(self.host(number).pid)
        for number in sorted(self._deaf):
            receive_again(self.host(number).pid)
        for number in sorted(self._slow):
            lift_limit(self.host(number).pid, "eth0")
            lift_limit(self._switch.pid, self._port(number))
        self._cut, self._down, self._filtered, self._deaf, self._slow = set(), set(), set(), set(), set()

    @property
    def is_cut(self) -> bool:
        """Return True if packets to some hosts are dropped."""
        return bool(self._cut or self._down or self._deaf)

    def add_network(self, *numbers: int, subnet: str = "", ipv6: bool = False) -> dict[int, str]:
        """Add a network that connects only these hosts, by an interface ethK of each; K is 1 for the first one.

        `subnet`: the first three numbers of its /24, 10.78.K unless given. Returns each host's address there.
        """
        index = self._next
        self._next += 1
        subnet = subnet or f"10.78.{index}"
        bridge = f"net{index}"
        self._switch.add_bridge(bridge)
        self._added.append(bridge)
        created = {}
        for number in numbers:
            created[number] = f"{subnet}.{number}"
            addresses = [f"{created[number]}/24", *([f"fd78:{index:x}::{number:x}/64"] if ipv6 else [])]
            port = f"n{index}h{number}"
            self._switch.plug(bridge, self.host(number).pid, port, f"eth{index}", addresses)
            self._added.append(port)
        return created

    def name_hosts(self, names: Mapping[str, str]) -> None:
        """Set /etc/hosts on all hosts: addresses by name, besides localhost. `reset` restores it."""
        for host in self._hosts.values():
            host.path("/run/bed/etc-hosts").write_text(hosts_file(names))

    # Between tests

    def leftovers(self, ignoring: tuple[str, ...] = ()) -> dict[str, object]:
        """Return what jobs left behind, by host: processes, listening ports, files, shared memory. Empty if nothing.

        Reports that a job writes about its failure are not counted; they may be incomplete if their writer was
        killed.

        `ignoring`: how the command lines of processes begin that are not counted.
        """
        found: dict[str, object] = {}
        for number, host in self._hosts.items():
            left = {
                "processes": {pid: line for pid, line in host.processes().items() if not line.startswith(ignoring)},
                "listening": host.listening(),
                "files": sorted(name for name in host.files() - self._files[number] if not _REPORT.search(name)),
            }
            found |= {f"{host.name} {kind}": value for kind, value in left.items() if value}
        return found

    def reset(self) -> None:
        """End all processes, repair the network, remove added networks and new files, restore home directories."""
        self.heal()
        if self._added:
            self._switch.remove(reversed(self._added))
            self._added, self._next = [], 1
        self.name_hosts({name: f"10.77.0.{number}" for name, number in self._names.items()})
        for number, host in self._hosts.items():
            host.kill_all()
            for name in host.files() - self._files[number]:
                with contextlib.suppress(FileNotFoundError):
                    host.path(name).unlink()
        for (number, name), content in self._homes.items():
            path = self._hosts[number].path(name)
            if not path.exists() or path.read_bytes() != content:
                path.write_bytes(content)
                path.chmod(0o600)

    def close(self) -> None:
        """Shut everything down."""
        for host in self._hosts.values():
            host.close()
        self._switch.close()


__all__ = ["DESK", "BedError", "Cluster"]
