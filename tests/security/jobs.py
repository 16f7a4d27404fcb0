"""Real jobs under attack, and their listening sockets."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from tests.runner.launching import Running

PATIENCE = 60.0  # seconds for steps that take two or three on an idle machine
T = TypeVar("T", bound=Sized)

_LISTEN = "0A"

# Uses the engine and objects without a framework, whose import takes seconds. Files in the directory given as
# argument synchronize it with the test: ready-R, go (for the last rank), formed-R, end.
WORKER = """
import os, sys, time
from pathlib import Path
from horovod.common.basics import HorovodBasics
from horovod.common.objects import allgather_object, broadcast_object

place, rank = Path(sys.argv[1]), int(os.environ["HOROVOD_RANK"])
hvd = HorovodBasics("torch")
(place / f"ready-{rank}").touch()
while rank == int(os.environ["HOROVOD_SIZE"]) - 1 and not (place / "go").exists():
    time.sleep(0.02)
hvd.init()
(place / f"formed-{rank}").touch()
step = 0
while not broadcast_object((place / "end").exists() if rank == 0 else None, name=f"end {step}"):
    gathered = allgather_object((rank, step, b"x" * 10000 * rank), name=f"step {step}")
    assert gathered == [(r, step, b"x" * 10000 * r) for r in range(hvd.size())], gathered
    step += 1
    time.sleep(0.01)
hvd.shutdown()
print("all sums right", flush=True)
"""


def wait_for(find: Callable[[], T], count: int, seconds: float = PATIENCE) -> T:
    """Return what `find` returns, once it has `count` elements."""
    deadline = time.monotonic() + seconds
    while True:
        found = find()
        if len(found) >= count:
            return found
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds:g} s for {count} of what {find.__qualname__} finds, there are {len(found)}")
        time.sleep(0.05)


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment that the process was started with; empty if it has ended."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def workers_of(job: Running) -> list[int]:
    """Return processes with a rank."""
    return sorted(pid for pid in job.left() if "HOROVOD_RANK" in environment_of(pid))


@dataclass(frozen=True)
class Listener:
    """A listening socket: its process and address."""

    pid: int
    kind: str  # "tcp" or "unix"
    address: str | bytes  # unix: as passed to connect()
    port: int = 0


def listeners_of(pids: Iterable[int]) -> list[Listener]:
    """Return all listening sockets of these processes, from the kernel's tables."""
    found = []
    for pid in pids:
        try:
            inodes = _sockets_of(pid)
            found += [Listener(pid, "tcp", *_TcpLine(line).where) for line in _tcp_lines(pid) if line[9] in inodes]
            unix = Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]
        except OSError:  # it has ended
            continue
        for line in unix:
            fields = line.split(maxsplit=7)
            listening = int(fields[3], 16) & 0x10000
            if listening and fields[6] in inodes:
                found.append(Listener(pid, "unix", fields[7].replace("@", "\0", 1).encode()))
    return found


def _sockets_of(pid: int) -> set[str]:
    inodes = set()
    for entry in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{entry}")
        except OSError:
            continue
        if match := re.fullmatch(r"socket:\[(\d+)\]", target):
            inodes.add(match[1])
    return inodes


def _tcp_lines(pid: int) -> list[list[str]]:
    lines = []
    for name in ("tcp", "tcp6"):
        path = Path(f"/proc/{pid}/net/{name}")
        if path.exists():
            lines += [line.split() for line in path.read_text().splitlines()[1:]]
    return [line for line in lines if line[3] == _LISTEN]


class _TcpLine:
    def __init__(self, fields: list[str]) -> None:
        digits, port = fields[1].split(":")
        groups = [bytes.fromhex(digits[i : i + 8])[::-1] for i in range(0, len(digits), 8)]
        raw = b"".join(groups)
        family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
        self.where = (socket.inet_ntop(family, raw), int(port, 16))
