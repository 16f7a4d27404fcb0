"""horovodrun --doctor on hosts: it names each fault and still examines the rest."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

from tests.cluster.jobs import no_leftovers
from tests.testbed.cluster import Cluster
from tests.testbed.hosts import Host

COMMAND = [sys.executable, "-m", "horovod.runner.launch", "--doctor"]


def doctor(host: Host, *flags: str) -> subprocess.CompletedProcess[str]:
    return host.run([*COMMAND, *flags], timeout=180)


def test_hosts_without_fault(cluster: Cluster) -> None:
    cluster.add_network(1, 2)
    done = doctor(cluster.desk, "-H", "host1:1,host2:1", "--network-interfaces", "eth0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 2 hosts\n" in done.stdout
    assert "host1 -> host2  10.77.0.2 (eth0)" in done.stdout
    assert " 0 failures\n" in done.stdout
    no_leftovers(cluster)


def test_faults_are_named_with_advice(cluster: Cluster) -> None:
    """A firewall in one direction, one in both, and an unknown host name."""
    cluster.firewall(2)
    cluster.firewall(3)
    done = doctor(cluster.host(1), "-H", "host1:1,host2:1,host3:1,host9:1")
    assert done.returncode == 1
    assert "not examined: host9\n" in done.stdout
    assert "FAIL connection: host9: its name cannot be resolved\n     -> check the name in -H" in done.stdout
    one_way = "host1 does not reach {0}, only the other way round: 10.77.0.{1} (eth0): no answer; fd77::{1} (eth0): no"
    assert f"WARN network: {one_way.format('host2', 2)}" in done.stdout
    assert f"WARN network: {one_way.format('host3', 3)}" in done.stdout
    assert "FAIL network: host2 and host3 do not reach each other: 10.77.0.3 (eth0): no answer; fd77::3" in done.stdout
    assert "HOROVOD_PORT_RANGE" in done.stdout
    assert "host2 -> host1  10.77.0.1 (eth0)" in done.stdout
    no_leftovers(cluster)


def test_an_interrupt_ends_the_job(cluster: Cluster) -> None:
    """An interrupt ends it even while it waits for a host that does not answer."""
    cluster.partition(2)
    process = cluster.host(1).popen(COMMAND + ["-H", "host1:1,host2:1"], text=True)
    deadline = time.monotonic() + 120
    while not any("ssh" in line for line in cluster.host(1).processes().values()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (130, "", "horovodrun: stopped by SIGINT\n")
    no_leftovers(cluster)
