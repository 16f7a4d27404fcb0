"""Simulated hosts: network namespaces on one bridge, with optional rate limits and delays.

With a delay, peers/switch.c takes the place of the bridge, because not every kernel has netem. The switch needs a C
compiler.

No named namespaces are left behind on the machine. This process enters a new network namespace, which contains the
bridge. Another process holds each host's namespace, and always exits when this process exits. Needs root, iproute2 and
util-linux.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

PROGRAMS = ("ip", "tc", "unshare", "nsenter", "cat")
GATEWAY = "10.0.0.254"

_CLONE_NEWNET = 0x40000000


def missing() -> str:
    """Return the reason why hosts cannot be simulated on this machine, or an empty string."""
    absent = [program for program in PROGRAMS if not shutil.which(program)]
    if os.geteuid() != 0:
        return "network namespaces need root"
    return f"not installed: {', '.join(absent)} (packages iproute2 and util-linux)" if absent else ""


def address(host: int) -> str:
    return f"10.0.0.{host + 1}"


def shaping(rate_mbit: float, delay_free_burst: int = 256 << 10) -> list[str]:
    """Return the tc arguments (after `dev NAME`) that limit a device's outgoing rate with a token bucket."""
    bucket = ["rate", f"{rate_mbit:g}mbit", "burst", str(delay_free_burst), "latency", "20ms"]
    return ["root", "tbf", *bucket]


def run(*command: str) -> None:
    """Run a command. Raise RuntimeError with its output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


class Hosts:
    """Simulated hosts in network namespaces, as a context manager.

    Enter the context before this process starts threads, because the process moves to another network namespace.

    Attributes:
        count: Number of hosts.
        rate_mbit: Maximum outgoing rate of a host's interface in Mbit/s, or None for no limit.
        incoming: True if the limit also applies to incoming data, as it always does with a delay.
        delay_ms: Milliseconds that a packet takes from one host to another.
    """

    def __init__(
        self, count: int, rate_mbit: float | None = None, incoming: bool = False, delay_ms: float = 0.0
    ) -> None:
        self._count, self._rate, self._incoming, self._delay = count, rate_mbit, incoming, delay_ms
        self._holders: list[subprocess.Popen[bytes]] = []
        # Id of the process that holds each host's namespace.
        self._hosts: list[int] = []

    def __enter__(self) -> Hosts:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWNET) != 0:
            raise RuntimeError(f"cannot make a network namespace: {os.strerror(ctypes.get_errno())}")
        try:
            run("ip", "link", "set", "lo", "up")
            if self._delay:
                self._start_switch()
            else:
                run("ip", "link", "add", "bridge0", "type", "bridge")
            run("ip", "addr", "add", f"{GATEWAY}/24", "dev", "bridge0")
            run("ip", "link", "set", "bridge0", "up")
            for host in range(self._count):
                self._add(host)
        except BaseException:
            self.close()
            raise
        return self

    def _hold(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a process that exits when its stdin is closed or this process exits."""
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._holders.append(holder)
        assert holder.stdout is not None
        # Wait for the line that the process prints once it is ready.
        if not holder.stdout.readline():
            raise RuntimeError(f"{' '.join(command)} failed")
        return holder

    def _start_switch(self) -> None:
        source = Path(__file__).with_name("peers") / "switch.c"
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            program = os.path.join(folder, "switch")
            run(os.environ.get("CC", "cc"), "-O2", "-o", program, str(source))
            devices = ["bridge0", *(f"port{host}" for host in range(self._count))]
            self._hold(program, f"{self._rate or 0:g}", f"{self._delay * 1e3:g}", *devices)

    def _add(self, host: int) -> None:
        holder = self._hold("unshare", "--net", "sh", "-c", "echo; exec cat")
        self._hosts.append(holder.pid)
        port = f"port{host}"
        if self._delay:
            run("ip", "link", "set", port, "netns", str(holder.pid), "name", "eth0")
        else:
            run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
            run("ip", "link", "set", port, "master", "bridge0", "up")
        for arguments in (["addr", "add", f"{address(host)}/24", "dev", "eth0"], ["link", "set", "eth0", "up"]):
            run(*self.inside(host, ["ip", *arguments]))
        run(*self.inside(host, ["ip", "link", "set", "lo", "up"]))
        if self._rate is not None and not self._delay:
            run(*self.inside(host, ["tc", "qdisc", "add", "dev", "eth0", *shaping(self._rate)]))
            if self._incoming:
                run("tc", "qdisc", "add", "dev", port, *shaping(self._rate))

    def inside(self, host: int, command: list[str]) -> list[str]:
        """Return the command line that runs `command` in a host's network namespace."""
        return ["nsenter", f"--net=/proc/{self._hosts[host]}/ns/net", "--", *command]

    def close(self) -> None:
        for holder in self._holders:
            # Close the process's stdin, which makes the process exit.
            holder.communicate(timeout=10)
        self._holders.clear()
        self._hosts.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
