"""Hosts out of network namespaces: each with its own address on one bridge, on request with a limited rate.

Nothing has a name that others could see: this process enters a network namespace of its own, in which the bridge is,
and each host's namespace is held by a process that ends when this one does, however it ends. Needs root and the
programs of iproute2 and util-linux.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from types import TracebackType

PROGRAMS = ("ip", "tc", "unshare", "nsenter", "cat")
GATEWAY = "10.0.0.254"

_CLONE_NEWNET = 0x40000000


def missing() -> str:
    """Why hosts cannot be made here; empty when they can."""
    absent = [program for program in PROGRAMS if not shutil.which(program)]
    if os.geteuid() != 0:
        return "network namespaces need root"
    return f"not installed: {', '.join(absent)} (packages iproute2 and util-linux)" if absent else ""


def address(host: int) -> str:
    return f"10.0.0.{host + 1}"


def shaping(rate_mbit: float, delay_free_burst: int = 256 << 10) -> list[str]:
    """Arguments of tc after `dev NAME` for a token bucket of that rate: what leaves by the device."""
    bucket = ["rate", f"{rate_mbit:g}mbit", "burst", str(delay_free_burst), "latency", "20ms"]
    return ["root", "tbf", *bucket]


def run(*command: str) -> None:
    """Raises RuntimeError with what the command said when it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


class Hosts:
    """`count` hosts. Use as a context manager, before this process has threads: it moves to another network namespace.

    rate_mbit: what a host's interface sends at most, in Mbit/s; None: as fast as it goes. `incoming`: and what it
    receives.
    """

    def __init__(self, count: int, rate_mbit: float | None = None, incoming: bool = False) -> None:
        self._count, self._rate, self._incoming = count, rate_mbit, incoming
        self._holders: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Hosts:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWNET) != 0:
            raise RuntimeError(f"cannot make a network namespace: {os.strerror(ctypes.get_errno())}")
        try:
            run("ip", "link", "set", "lo", "up")
            run("ip", "link", "add", "bridge0", "type", "bridge")
            run("ip", "addr", "add", f"{GATEWAY}/24", "dev", "bridge0")
            run("ip", "link", "set", "bridge0", "up")
            for host in range(self._count):
                self._add(host)
        except BaseException:
            self.close()
            raise
        return self

    def _add(self, host: int) -> None:
        # Ends at the end of its input, which comes with the end of this process at the latest.
        holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._holders.append(holder)
        assert holder.stdout is not None
        if holder.stdout.read(1) != b"\n":  # its namespace exists from here on
            raise RuntimeError("unshare --net failed")
        port = f"port{host}"
        run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        run("ip", "link", "set", port, "master", "bridge0", "up")
        for words in (["addr", "add", f"{address(host)}/24", "dev", "eth0"], ["link", "set", "eth0", "up"]):
            run(*self.inside(host, ["ip", *words]))
        run(*self.inside(host, ["ip", "link", "set", "lo", "up"]))
        if self._rate is not None:
            run(*self.inside(host, ["tc", "qdisc", "add", "dev", "eth0", *shaping(self._rate)]))
            if self._incoming:
                run("tc", "qdisc", "add", "dev", port, *shaping(self._rate))

    def inside(self, host: int, command: list[str]) -> list[str]:
        """The command line that runs `command` in that host's network."""
        return ["nsenter", f"--net=/proc/{self._holders[host].pid}/ns/net", "--", *command]

    def close(self) -> None:
        for holder in self._holders:
            holder.communicate(timeout=10)  # closes its input
        self._holders.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
