"""Elastic jobs over ssh: hosts are lost, return, are added and removed, and the other hosts continue."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

from horovod.runner.base import linux
from tests.cluster.jobs import Running, no_leftovers, running
from tests.testbed.cluster import Cluster
from tests.testbed.hosts import Host

PROGRAM = [sys.executable, "-m", "tests.runner.elastic.program"]


class Elastic:
    """A job whose hosts are listed in a file."""

    def __init__(self, folder: Path) -> None:
        self._hosts = folder / "hosts"
        self.stop = folder / "stop"
        self.script = folder / "hosts.sh"
        self.script.write_text(f"#!/bin/sh\ncat {self._hosts}\n")
        self.script.chmod(0o755)
        self.job: Running
        self._seen = 0

    def hosts(self, **slots: int) -> None:
        """Set the hosts that discovery finds from now on."""
        new = self._hosts.with_suffix(".new")
        new.write_text("".join(f"{host}:{count}\n" for host, count in slots.items()))
        new.rename(self._hosts)

    def until_line(self, pattern: str) -> str:
        """Return the first line that matches the pattern after the line found by the previous call."""

        def found() -> bool:
            lines = self.job.err.splitlines()
            for place, line in enumerate(lines[self._seen :], self._seen + 1):
                if re.search(pattern, line):
                    self._seen, self._line = place, line
                    return True
            return False

        self.job.wait_for(found, f"{pattern!r} on stderr")
        return self._line

    def trains(self, size: int) -> None:
        """Wait until this many ranks have begun and taken some steps since."""
        since = time.monotonic()

        def enough_started() -> bool:
            fields = [line.partition(">:")[2].split() for line in self.job.out.splitlines()]
            starts = [w for w in fields if len(w) > 4 and w[1] == "begins"][-1:]
            steps = [w for w in fields if len(w) > 2 and w[1] == "step" and float(w[0]) > since]
            return bool(starts) and starts[0][4] == str(size) and len(steps) > 5 * size

        self.job.wait_for(enough_started, f"{size} ranks that train")


def agent_of(host: Host) -> int:
    """Return the agent process, the child of its guard."""
    found = {p for p, line in host.processes().items() if "runner.agent" in line and "sys.argv" in line}
    guard = next(pid for pid in sorted(found) if found & set(linux.descendants(pid)))
    return (found & set(linux.descendants(guard))).pop()


def test_hosts_come_and_go(cluster: Cluster, tmp_path: Path) -> None:
    """The launcher runs on none of the hosts."""
    one = Elastic(tmp_path)
    one.hosts(host1=1, host2=2, host3=1)
    flags = ["-np", "4", "--min-np", "1", "--blacklist-cooldown-range", "1", "2", "--host-discovery-script", one.script]
    with running(cluster, tmp_path, *flags, *PROGRAM, one.stop, on=cluster.desk) as one.job:
        one.trains(4)
        # An agent dies, and all workers on its host with it; the host returns after its cooldown.
        os.kill(agent_of(cluster.host(2)), signal.SIGKILL)
        one.until_line("host host2 is lost: its agent ended: .*signal 9")
        one.until_line(r"rank 1 on host host2 failed: its host is lost; 2 ranks left")
        one.until_line("4 ranks now; new: rank 2 on host host2, rank 3 on host host2")
        one.trains(4)
        # One host is added, and one that is unreachable, which does not end the job.
        one.hosts(host1=1, host2=2, host3=1, host4=1, host9=1)
        one.until_line("host host9: .*")
        one.until_line("5 ranks now; new: rank 4 on host host4")
        one.trains(5)
        # A host is removed: its workers stop in order, and then its agent.
        one.hosts(host1=1, host3=1, host4=1)
        one.job.wait_for(
            lambda: not any("runner.agent" in line for line in cluster.host(2).processes().values()), "end"
        )
        one.trains(3)
        assert "host host2 gets no new workers" not in "\n".join(one.job.err.splitlines()[one._seen :])
        one.stop.touch()
        done = one.job.finish()
        assert done.code == 0, done.err
        assert done.out.count(" ends\n") == 3
    no_leftovers(cluster)
