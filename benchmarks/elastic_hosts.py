"""Measure how long an elastic job on several hosts needs to continue after a kill, or after a host's cable is pulled.

    python benchmarks/elastic_hosts.py [--kills 20] [--pulls 5] [--heartbeat 4] [--json FILE]

Four hosts with one rank each, simulated by namespaces with ssh servers (tests/testbed), and the launcher on a fifth.
They are removed at the end. Needs root, and the packages of scripts/install-system-packages.sh. The training is that of
elastic.py.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import elastic_jobs as jobs
from elastic_figures import Line, lost, parse, recovery, row, spread

sys.path.insert(0, str(jobs.ROOT))
from horovod.runner.base import linux
from tests.testbed.cluster import Cluster
from tests.testbed.hosts import why_not

HOSTS = 4
# ^Larger than any process id. Host number and process id form one number, because hosts use the same process ids.
_A_HOST = 10_000_000


class HostsJob:
    """Job with one rank on each simulated host. Host and process id identify a worker."""

    def __init__(self, cluster: Cluster, folder: Path, heartbeat: float) -> None:
        self._cluster = cluster
        self._folder = folder
        jobs.hosts(folder, "\n".join(f"host{number}:1" for number in range(1, HOSTS + 1)))
        script = folder / "hosts.sh"
        script.write_text(f"#!/bin/sh\ncat {folder / 'hosts'}\n")
        script.chmod(0o755)
        flags = ["-np", str(HOSTS), "--min-np", "2", "--max-np", str(HOSTS), "--host-discovery-script", str(script)]
        launcher = [sys.executable, "-m", "horovod.runner", *flags, "--blacklist-cooldown-range", "1", "1"]
        told = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(jobs.ROOT), "HOROVOD_HEARTBEAT_TIMEOUT": f"{heartbeat:g}"}
        self._log = folder / "log"
        with self._log.open("wb") as log:
            command = [*launcher, *jobs.worker("horovod", folder)]
            self._process = cluster.desk.popen(command, stdout=log, stderr=log, env=told)

    def lines(self) -> list[Line]:
        found: list[Line] = []
        for file in self._folder.glob("*.lines"):
            host, _, pid = file.stem.rpartition("-")
            found += parse(int(host.removeprefix("host")) * _A_HOST + int(pid), file.read_text())
        return found

    def until(self, condition: Callable[[list[Line]], bool], what: str) -> list[Line]:
        deadline = time.monotonic() + jobs.LIMIT
        while not condition(lines := self.lines()):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{what}: not in time; the job's last words:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.05)
        return lines

    def until_train(self, steps: int = 10) -> dict[int, int]:
        """Wait until all ranks have done a few steps together, and return the worker of each host."""
        there: dict[int, int] = {}

        def trains(lines: list[Line]) -> bool:
            there.clear()
            for number in range(1, HOSTS + 1):
                mine = [line for line in lines if line.pid // _A_HOST == number]
                begun = [line for line in mine if line.what == "begins"]
                last = max(begun, key=lambda line: line.at, default=None)
                if last is None or last.number(2) != HOSTS:
                    return False
                if sum(line.what == "step" and line.at > last.at for line in mine if line.pid == last.pid) < steps:
                    return False
                there[number] = last.pid
            return True

        self.until(trains, f"{HOSTS} ranks that train")
        return there

    def kill(self, number: int) -> float:
        """Kill the rank of a host with SIGKILL, and return the time of the kill."""
        program = [sys.executable, str(jobs.PROGRAM)]
        workers = [pid for pid in self._cluster.host(number).processes() if _command_of(pid)[:2] == program]
        at = time.monotonic()
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        return at

    def close(self) -> None:
        """Wait for the end of the job; if it does not end by itself, kill it and raise an exception."""
        below = linux.descendants(self._process.pid)
        # Signal the child itself, because its parents only wait for it.
        for pid in below[:1]:
            linux.send_signal(pid, signal.SIGTERM)
        try:
            self._process.wait(jobs.LIMIT)
        except subprocess.TimeoutExpired:
            for pid in [*linux.descendants(self._process.pid), self._process.pid]:
                linux.send_signal(pid, signal.SIGKILL)
            self._process.wait()
            raise


def _command_of(pid: int) -> list[str]:
    """Return the command line of a process, or an empty string if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def measure(
    job: HostsJob, fault: Callable[[int], float], after: Callable[[], Any], count: int, drawn: random.Random
) -> tuple[list[float], list[int]]:
    """Inject faults one after another, and return the recovery times in seconds and the lost steps."""
    took, again = [], []
    for _ in range(count):
        there = job.until_train()
        victim = drawn.randint(1, HOSTS)
        rest = {worker for number, worker in there.items() if number != victim}
        # Inject the fault at a random time within a step.
        time.sleep(drawn.uniform(0.0, 0.05))
        at = fault(victim)
        lines = job.until(lambda lines: recovery(lines, rest, at) is not None, "going on")  # noqa: B023
        took.append(recovery(lines, rest, at) or 0.0)
        again.append(lost(lines, rest, at))
        after()
    return took, again


def rows(kills: list[float], pulls: list[float], again: Iterable[int], heartbeat: float) -> list[str]:
    beyond = [seconds - heartbeat for seconds in pulls]
    return [
        row(f"kill -9 of one of {HOSTS} ranks, a host each", f"{spread(kills)} ({len(kills)})", "p99 under 2 s"),
        row(f"a cable pulled, beyond the heartbeat's {heartbeat:g} s", f"{spread(beyond)} ({len(pulls)})", "2 s"),
        row("steps done again", str(sum(again)), "0"),
    ]


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--kills", type=int, default=20, help="kills of ranks (default: %(default)s)")
    made.add_argument("--pulls", type=int, default=5, help="pulled cables (default: %(default)s)")
    made.add_argument(
        "--heartbeat", type=float, default=4.0, help="s, HOROVOD_HEARTBEAT_TIMEOUT (default: %(default)s)"
    )
    made.add_argument("--seed", type=int, default=7, help="seed of random choices (default: %(default)s)")
    made.add_argument("--json", type=Path, help="file for all figures")
    options = made.parse_args()
    if why := why_not():
        raise SystemExit(why)
    drawn = random.Random(options.seed)
    cluster = Cluster(HOSTS)
    with jobs.folders() as folder:
        try:
            job = HostsJob(cluster, folder("hosts"), options.heartbeat)
            try:
                kills, first = measure(job, job.kill, lambda: None, options.kills, drawn)

                def pull(number: int) -> float:
                    at = time.monotonic()
                    cluster.link_down(number)
                    return at

                pulls, second = measure(job, pull, cluster.heal, options.pulls, drawn)
            finally:
                job.close()
        finally:
            cluster.close()
    print(
        "\n".join(["| What | Figure | Goal |", "|---|---|---|", *rows(kills, pulls, first + second, options.heartbeat)])
    )
    print(f"\n{len(os.sched_getaffinity(0))} cores, load average {os.getloadavg()[0]:.1f} at the end")
    if options.json:
        options.json.write_text(json.dumps({"kills": kills, "pulls": pulls, "again": first + second}, indent=1) + "\n")


if __name__ == "__main__":
    main()
