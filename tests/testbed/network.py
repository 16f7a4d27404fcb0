"""Cables and switches between the hosts of the test bed: a network namespace with bridges in it.

The namespace has no name and belongs to one process. So the machine's own network stays untouched, test beds of
several runs do not interfere, and bridges and cables disappear when that process ends for any reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping

from horovod.runner.base import linux

PROGRAM_LIMIT = 30.0  # seconds for one call of ip or nft


SEARCH = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"  # like root's PATH


class BedError(Exception):
    """The test bed cannot do what was requested: a fault of the test bed or machine, not of the tested code."""


def find_program(name: str) -> str | None:
    return shutil.which(name, path=SEARCH)


def enter(pid: int, *flags: str) -> list[str]:
    """Return the command prefix that runs a program in namespaces of process `pid` (flags of nsenter)."""
    return ["nsenter", "-t", str(pid), *flags]


def in_network(pid: int, command: list[str], text: str = "") -> str:
    """Run a program of this machine in the network of process `pid`; return its stdout. Raises BedError on failure."""
    line, environment = enter(pid, "--net") + command, {**os.environ, "PATH": SEARCH}
    done = subprocess.run(line, input=text, capture_output=True, text=True, timeout=PROGRAM_LIMIT, env=environment)
    if done.returncode:
        raise BedError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}\n{text}")
    return done.stdout


def ip(pid: int, lines: Iterable[str]) -> None:
    """Call ip(8) in the network of process `pid` once for each line."""
    in_network(pid, ["ip", "-batch", "-"], "\n".join(lines) + "\n")


class Switch:
    """Bridges, and cables from them to hosts; a cable is a veth pair whose other end is an interface of the host."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["unshare", "--net", "cat"], stdin=subprocess.PIPE, preexec_fn=linux.dying_with(os.getpid())
        )
        self.pid = self._process.pid
        self._wait_for_namespace()

    def _wait_for_namespace(self) -> None:
        """Wait until the process has executed `cat`; before that, it is still in the machine's network."""
        while self._process.poll() is None:
            if os.readlink(f"/proc/{self.pid}/ns/net") != os.readlink("/proc/self/ns/net"):
                return
        raise BedError(f"unshare --net ended with code {self._process.returncode}")

    def add_bridge(self, name: str) -> None:
        ip(self.pid, [f"link add {name} type bridge forward_delay 0 mcast_snooping 0", f"link set {name} up"])

    def plug(self, bridge: str, host: int, port: str, interface: str, addresses: Iterable[str]) -> None:
        """Connect `port` of a bridge to a new interface, with these addresses, of the host with process `host`."""
        ip(
            self.pid,
            [f"link add {port} type veth peer name {interface} netns {host}", f"link set {port} master {bridge} up"],
        )
        ip(
            host,
            [
                f"link set {interface} up",
                *(f"addr add {a} dev {interface}{' nodad' if ':' in a else ''}" for a in addresses),
            ],
        )

    def move(self, port: str, bridge: str) -> None:
        """Plug a cable into another bridge. The host sees no change of its link."""
        ip(self.pid, [f"link set {port} master {bridge}"])

    def set_link(self, port: str, up: bool) -> None:
        """Set the link up or down as seen by the host at the other end."""
        ip(self.pid, [f"link set {port} {'up' if up else 'down'}"])

    def remove(self, names: Iterable[str]) -> None:
        """Remove bridges, or ports with their cables and the interfaces at the other end."""
        ip(self.pid, [f"link del {name}" for name in names])

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.kill()
        self._process.wait(60)


def filter_new_connections(pid: int, *, incoming: bool, allowed: Iterable[int], refuse: bool) -> None:
    """Install a firewall in the network of process `pid`, replacing an earlier one.

    New TCP connections in one direction are dropped (or refused with a reset), except to the allowed ports; replies
    pass. The loopback interface is not filtered.
    """
    hook, interface = ("input", "iif") if incoming else ("output", "oif")
    ports = ", ".join(str(port) for port in allowed)
    match = f"tcp dport != {{ {ports} }} " if ports else ""
    verdict = "reject with tcp reset" if refuse else "drop"
    open_network(pid)
    in_network(
        pid,
        ["nft", "-f", "-"],
        f"""table inet bed {{
                chain c {{
                    type filter hook {hook} priority 0
                    {interface} lo accept
                    tcp flags & (syn | ack) == syn {match}{verdict}
                }}
            }}\n""",
    )


def limit_rate(pid: int, interface: str, rate: str) -> None:
    """Limit outgoing traffic of this interface, in the network of process `pid`, to `rate`, such as "100mbit"."""
    shape = ["root", "tbf", "rate", rate, "burst", "64kb", "latency", "50ms"]
    in_network(pid, ["tc", "qdisc", "replace", "dev", interface, *shape])


def lift_limit(pid: int, interface: str) -> None:
    """Undo limit_rate."""
    in_network(pid, ["tc", "qdisc", "del", "dev", interface, "root"])


def drop_packets_from(pid: int, addresses: Iterable[str]) -> None:
    """Drop packets from these addresses (IPv4 or IPv6) in the network of process `pid` until `receive_again`.

    May be called again for more addresses.
    """
    rules = "\n".join(f"add rule inet cut c {'ip6' if ':' in a else 'ip'} saddr {a} drop" for a in addresses)
    begin = "add table inet cut\nadd chain inet cut c { type filter hook input priority 0; }\n"
    in_network(pid, ["nft", "-f", "-"], f"{begin}{rules}\n")


def receive_again(pid: int) -> None:
    in_network(pid, ["nft", "-f", "-"], "add table inet cut\ndelete table inet cut\n")


def try_network() -> None:
    """Try each operation that test bed networks need once. Raises BedError if the kernel forbids or lacks one."""
    switch = Switch()
    try:
        switch.add_bridge("main")
        switch.plug("main", switch.pid, "port", "eth0", ["10.77.0.1/24", "fd77::1/64"])
        for incoming in (True, False):
            filter_new_connections(switch.pid, incoming=incoming, allowed=(22,), refuse=incoming)
        open_network(switch.pid)
    finally:
        switch.close()


def open_network(pid: int) -> None:
    """Remove the firewall of `filter_new_connections`, if any."""
    in_network(pid, ["nft", "-f", "-"], "add table inet bed\ndelete table inet bed\n")


def hosts_file(names: Mapping[str, str]) -> str:
    """Return the text of /etc/hosts: the address of every name."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
    return "\n".join([*lines, *(f"{address} {name}" for name, address in names.items())]) + "\n"
