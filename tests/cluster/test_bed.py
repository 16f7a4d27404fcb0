"""The hosts made of namespaces are isolated like real hosts, and leave nothing behind."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.testbed.cluster import Cluster
from tests.testbed.hosts import ROOT


def reaches(cluster: Cluster, a: int, b: int) -> bool:
    """Return True if a job on host a can log in on host b."""
    command = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", cluster.host(b).name, "true"]
    return cluster.host(a).run(command).returncode == 0


def connects(cluster: Cluster, a: int, b: int, port: int) -> str:
    """Return "ok", or the error of a TCP connection from a to b."""
    code = f"import socket; socket.create_connection(({cluster.host(b).address!r}, {port}), 2); print('ok')"
    done = cluster.host(a).run([sys.executable, "-I", "-c", code])
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_what_a_job_leaves_is_found_and_removed(cluster: Cluster) -> None:
    host = cluster.host(3)
    code = """
import socket, time
s = socket.create_server(("", 0))
open("/dev/shm/left", "w"); open("/run/home/left", "w"); open("/run/home/.ssh/known_hosts", "w")
print(s.getsockname()[1], flush=True)
time.sleep(600)
"""
    process = host.popen([sys.executable, "-I", "-c", code])
    port = int(process.stdout.readline())
    found = cluster.litter()
    assert found["host3 files"] == ["/dev/shm/left", "/run/home/left"]
    assert [p for _, p in found["host3 listening"]] == [port]  # type: ignore[attr-defined]
    assert list(found["host3 processes"]) == [process.target]  # type: ignore[call-overload]
    cluster.reset()
    process.communicate()
    assert cluster.litter() == {}
    assert reaches(cluster, 3, 1)


def test_nothing_is_left_when_the_tests_are_killed() -> None:
    """Another process creates hosts and is killed by SIGKILL; all their processes, mounts and networks go with it."""
    from tests.testbed.hosts import why_not

    if reason := why_not():
        pytest.skip(reason)
    code = """
import sys, time
from tests.testbed.cluster import Cluster
c = Cluster(2)
p = c.host(1).popen(["sleep", "600"])
print(c.host(1).pid, c.host(2).pid, p.target, c._switch.pid, flush=True)
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    pids = [int(word) for word in process.stdout.readline().split()]
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    process.kill()
    process.communicate()
    wait_until(lambda: not any(alive(pid) for pid in pids))
    assert not {"main", "cut", "h1", "h254"} & set(os.listdir("/sys/class/net"))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in b"ZX"
    except OSError:
        return False
