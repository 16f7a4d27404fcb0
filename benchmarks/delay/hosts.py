"""Simulated hosts with a network delay between any two: network namespaces connected by switch.c.

No names are created on the machine: this process enters a new network namespace, in which the job's store listens, and
each host's namespace is held by a process that ends with this one in every case. Needs root, /dev/net/tun, a C
compiler, iproute2 and util-linux.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

_CLONE_NEWNET = 0x40000000
_PROGRAMS = ("ip", "unshare", "nsenter", "cat")


def missing() -> str:
    """Return the reason why hosts cannot be created here, or an empty string."""
    absent = [program for program in _PROGRAMS if not shutil.which(program)]
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not os.path.exists("/dev/net/tun"):
        return "no /dev/net/tun"
    if not (shutil.which("cc") or shutil.which("gcc")):
        return "no C compiler"
    return f"not installed: {', '.join(absent)} (packages iproute2 and util-linux)" if absent else ""


def run(*command: str) -> None:
    """Run a command; raise RuntimeError with its output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


class DelayedHosts:
    """Up to 63 hosts, connected to each other and to this process with a delay of `delay_us` microseconds per packet.

    Use as a context manager, before this process starts threads, because it moves to another network namespace. Raises
    RuntimeError if the setup fails.
    """

    def __init__(self, count: int, delay_us: float) -> None:
        self._count, self._delay_us = count, delay_us
        self._processes: list[subprocess.Popen[bytes]] = []
        self._holders: list[subprocess.Popen[bytes]] = []
        self._folder = tempfile.TemporaryDirectory(prefix="horovod-delay-")

    @property
    def here(self) -> str:
        """Address of this process in the hosts' network."""
        return self.address(self._count)

    @staticmethod
    def address(host: int) -> str:
        return f"10.0.0.{host + 1}"

    def inside(self, host: int, command: list[str]) -> list[str]:
        """Return the command line that runs `command` in the host's network namespace."""
        return ["nsenter", f"--net=/proc/{self._holders[host].pid}/ns/net", "--", *command]

    def __enter__(self) -> DelayedHosts:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWNET) != 0:
            raise RuntimeError(f"cannot make a network namespace: {os.strerror(ctypes.get_errno())}")
        try:
            self._start_switch()
            for host in range(self._count):
                self._add(host)
            self._configure([], self._count)
        except BaseException:
            self.close()
            raise
        return self

    def _start_switch(self) -> None:
        program = os.path.join(self._folder.name, "switch")
        compiler = shutil.which("cc") or "gcc"
        run(compiler, "-O2", "-o", program, str(Path(__file__).resolve().parent / "switch.c"))
        # With real-time priority, so that scheduling does not add to the delay.
        first = ["chrt", "-f", "50"] if shutil.which("chrt") else []
        self._start([*first, program, str(self._count + 1), str(self._delay_us)], "ready")

    def _start(self, command: list[str], sign: str) -> subprocess.Popen[bytes]:
        """Start a process that ends when its stdin is closed, at the latest at the end of this process."""
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._processes.append(process)
        assert process.stdout is not None
        if process.stdout.readline() != f"{sign}\n".encode():
            raise RuntimeError(f"{' '.join(command)} failed")
        return process

    def _add(self, host: int) -> None:
        holder = self._start(
            ["unshare", "--net", "sh", "-c", "echo; exec cat"], ""
        )  # prints the sign when its namespace exists
        self._holders.append(holder)
        run("ip", "link", "set", f"delay{host + 1}", "netns", str(holder.pid))
        self._configure(self.inside(host, []), host)

    def _configure(self, prefix: list[str], host: int) -> None:
        device = f"delay{host + 1}"
        run(*prefix, "ip", "addr", "add", f"{self.address(host)}/24", "dev", device)
        # Large packets keep the switch's work, which real networks do not have, small.
        run(*prefix, "ip", "link", "set", device, "mtu", "9000", "txqueuelen", "1000", "up")
        run(*prefix, "ip", "link", "set", "lo", "up")

    def close(self) -> None:
        for process in reversed(self._processes):
            process.communicate(timeout=10)  # closes its stdin
        self._processes.clear()
        self._folder.cleanup()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
