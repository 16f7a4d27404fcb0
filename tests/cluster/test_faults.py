"""After any fault the job ends soon on all hosts, leaves nothing behind, and names the failed rank and the cause.

A row of FAULTS is one kind of fault, on two hosts with two ranks each. `make test-cluster` repeats all with four
hosts, where each but the first is reached through another, and checks that they end within the promised time.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from horovod.runner.base import linux
from tests.cluster.jobs import WORKER, Running, no_leftovers, running
from tests.testbed.cluster import Cluster
from tests.testbed.hosts import SSHD_SESSIONS, Host

SLOTS = 2
HEARTBEAT = 6  # seconds of silence before a fault is assumed, where silence is the only sign
WORD = 10.0  # seconds: promised time from when a fault is known to the end of the job everywhere
DEATH = 5.0  # seconds: promised time for the death of a process
SMALL = "/mnt"  # a file system of 64 KiB on host1
LAYOUTS = {"2 hosts": (2, 32), "4 in a row": (4, 1)}  # number of hosts, fan-out of the tree of agents
CHOSEN = [pytest.param(name, marks=[pytest.mark.heavy] if name != "2 hosts" else []) for name in LAYOUTS]
LONG = ("never calls init", "partition")  # waits for a timeout
GENEROUS = 180.0  # seconds in place of the promises in `make test`, which may run on a busy machine


@dataclass
class Scene:
    """A running job whose ranks are all in the middle of their steps."""

    cluster: Cluster
    hosts: list[Host]
    job: Running

    @property
    def last_host(self) -> Host:
        return self.hosts[-1]

    @property
    def last_rank(self) -> int:
        return SLOTS * len(self.hosts) - 1

    def worker(self, rank: int) -> int:
        variable = f"HOROVOD_RANK={rank}".encode()
        for pid, line in self.hosts[rank // SLOTS].processes().items():
            if "tests.cluster.worker" in line and variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return pid
        raise AssertionError(f"no process of rank {rank}")

    def agents(self) -> list[int]:
        """Return the guard and agent processes on the last host."""
        found = {p for p, line in self.last_host.processes().items() if "runner.agent" in line and "sys.argv" in line}
        guard = next(pid for pid in sorted(found) if found & set(linux.descendants(pid)))
        return [guard, *(found & set(linux.descendants(guard)))]


Action = Callable[[Scene], None]


def kill_worker(scene: Scene) -> None:
    os.kill(scene.worker(scene.last_rank), signal.SIGKILL)


def kill_agent(scene: Scene) -> None:
    os.kill(scene.agents()[1], signal.SIGKILL)


def kill_guard(scene: Scene) -> None:
    os.kill(scene.agents()[0], signal.SIGKILL)


def kill_launcher(scene: Scene) -> None:
    scene.job.process.send(signal.SIGKILL)


def kill_ssh(scene: Scene) -> None:
    """Kill the ssh connection to the last host, or the one through which it is reached."""
    for pid, line in scene.hosts[0].processes().items():
        if line.startswith("ssh ") and ("-- host" in line):
            os.kill(pid, signal.SIGKILL)


def cut_off(scene: Scene) -> None:
    """Cut half of the hosts off from the launcher, but not from one another."""
    half = scene.hosts[len(scene.hosts) // 2 :]
    scene.cluster.partition(*(host.number for host in half))


def interrupt_twice(scene: Scene) -> None:
    scene.job.process.send(signal.SIGINT)
    scene.job.wait_for(lambda: "SIGINT received" in scene.job.err, "the first Ctrl-C")
    scene.job.process.send(signal.SIGINT)


@dataclass
class Fault:
    """One kind of fault.

    `worker`: what the last rank does by itself (worker.py); otherwise `action` is applied to the job. `says`:
    patterns found in this order in the last lines, with <rank> and <host> for the last rank and its host.
    `silence`: seconds until the fault can be detected. `within`: seconds from then to the end of the launcher.
    """

    name: str
    says: list[str]
    code: int
    worker: str = ""
    action: Action | None = None
    silence: float = 0.0
    within: float = WORD
    flags: list[str] = field(default_factory=list)


FIRST = r"rank <rank> on host <host> failed first: "
LEFT = [FIRST + "it ended without an error while others", "what rank", "has left the job"]
LOST = r"host <host> \(rank.* [\d-]*<rank>\) is lost"
FAULTS = [
    Fault("exception", [FIRST + "exit code 1", 'File "', "KeyError: 'no such layer'$"], 1, "exception", within=DEATH),
    Fault("is killed", [FIRST + r"killed by signal 9 \(SIGKILL\)"], 137, action=kill_worker, within=DEATH),
    Fault("ends early", LEFT, 1, "early", within=DEATH),
    Fault(
        "never calls init",
        [FIRST + "it did not call hvd.init\\(\\) within 16 s"],
        1,
        "never",
        silence=16,  # long enough for the other ranks to get there on any machine
        flags=["--start-timeout", "16"],
    ),
    Fault("agent killed", [LOST + ": its agent ended.*SIGKILL"], 1, action=kill_agent, within=DEATH),
    Fault("guard killed", ["agent on host <host>"], 1, action=kill_guard, within=DEATH),
    Fault("ssh killed", [LOST], 1, action=kill_ssh, within=DEATH),
    Fault("launcher killed", [], -9, action=kill_launcher, within=DEATH),
    Fault("partition", [LOST], 1, action=cut_off, silence=HEARTBEAT, within=DEATH),
    Fault("log disk full", ["/mnt/.*No space left"], 1, "chatter", flags=["--output-filename", SMALL]),
    Fault(
        "Ctrl-C twice", ["SIGINT received again: killing", "SIGINT$"], 130, "stubborn", interrupt_twice, within=DEATH
    ),
]


@pytest.fixture
def small(cluster: Cluster) -> Iterator[None]:
    """Mount a small file system at SMALL."""
    host = cluster.launcher
    assert host.run(f"mount -t tmpfs -o size=64k tmpfs {SMALL}").returncode == 0
    yield
    # lazily: after a failure the job may still have files open there
    assert host.run(["umount", "-l", SMALL]).returncode == 0


def slowness() -> float:
    """Return how much slower this machine is now than an idle one: at least 1.5."""
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", "import horovod.runner.job.job"], check=True, timeout=120)
    return max(1.5, (time.monotonic() - start) / 0.3)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("layout", CHOSEN)
@pytest.mark.parametrize(
    "fault", [pytest.param(f, id=f.name, marks=[pytest.mark.heavy] * (f.name in LONG)) for f in FAULTS]
)
def test_fault(request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path, fault: Fault, layout: str) -> None:
    alone = "PYTEST_XDIST_WORKER" not in os.environ  # as in make test-cluster: no other tests run in parallel
    size, fanout = LAYOUTS[layout]
    hosts = [cluster.host(number) for number in range(1, size + 1)]
    rank = SLOTS * size - 1
    places = ",".join(f"{host.name}:{SLOTS}" for host in hosts)
    line = ["-np", str(SLOTS * size), "-H", places, *fault.flags, *WORKER]
    if fault.worker:
        line += ["--fault", fault.worker, "--rank", str(rank)]
    env = {"HOROVOD_SSH_FANOUT": str(fanout)}
    if fault.silence == HEARTBEAT:
        env["HOROVOD_HEARTBEAT_TIMEOUT"] = str(HEARTBEAT)
    before = slowness() if alone else 0.0
    with running(cluster, tmp_path, *line, env=env) as job:
        scene = Scene(cluster, hosts, job)
        job.wait_for_output("ready", 1 if fault.worker == "never" else SLOTS * size)
        start = time.monotonic()
        if fault.action is not None:
            fault.action(scene)
        done = job.finish()
        elapsed = time.monotonic() - start
    slower = max(before, slowness()) if alone else 0.0
    limit = fault.silence + (fault.within * slower if alone else GENEROUS)
    grace = fault.silence + (WORD * slower if alone else GENEROUS)
    if cluster.is_cut:  # the ssh server notices a lost connection only after the network is repaired
        no_leftovers(cluster, grace, ignoring=SSHD_SESSIONS)
        cluster.heal()
    no_leftovers(cluster, grace)
    assert done.code == fault.code, done.err
    last = "\n".join(done.messages)
    position = 0
    for pattern in fault.says:
        expected = pattern.replace("<rank>", str(rank)).replace("<host>", hosts[-1].name)
        found = re.compile(expected, re.MULTILINE).search(last, position)
        assert found, f"{expected!r} not in its place in:\n{done.err}"
        position = found.end()
    assert elapsed < limit, f"{elapsed:.1f} s\n{done.err}"
