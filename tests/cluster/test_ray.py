"""Jobs on a cluster of Ray whose nodes are hosts of their own, one of which is lost."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed.cluster import Cluster
from tests.testbed.hosts import Host

pytest.importorskip("ray")
pytestmark = pytest.mark.heavy

RAY = Path(sys.executable).parent / "ray"
ENVIRONMENT = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
WITHIN = 90.0  # s


@contextlib.contextmanager
def node(host: Host, *words: str) -> Iterator[None]:
    """Ray's node on the host, until its end."""
    command = [RAY, "start", *words, f"--node-ip-address={host.address}", "--num-cpus=2", "--block"]
    command += ["--object-store-memory=100000000"]
    process = host.popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        host.kill_all()
        process.wait(20)


def listens(host: Host, port: int) -> bool:
    return any(one == port for _, one in host.listening(all_of_them=True))


def test_a_host_of_two_is_lost(cluster: Cluster) -> None:
    first, second = cluster.host(1), cluster.host(2)
    with contextlib.ExitStack() as at_end:
        at_end.enter_context(node(first, "--head", "--port=6379", "--include-dashboard=false"))
        until = time.monotonic() + WITHIN
        while not listens(first, 6379):
            assert time.monotonic() < until
            time.sleep(0.2)
        at_end.enter_context(node(second, f"--address={first.address}:6379"))
        driver = first.popen(
            [sys.executable, "-m", "tests.cluster.ray_driver", f"{first.address}:6379"],
            env=ENVIRONMENT,
            text=True,
            stderr=subprocess.STDOUT,
        )
        at_end.callback(driver.kill)
        told, others, lost = [], [], 0.0
        for line in driver.stdout:
            try:
                told.append(json.loads(line))
            except ValueError:
                others.append(line)
                continue
            if not lost and told[-1].get("size") == 4 and told[-1]["step"] > 5:
                lost = time.time()
                second.kill_all()
        assert driver.wait(20) == 0, "".join(others)
    hosts = [one.pop(4) for one in told[0]["fixed"]]  # Ray says which comes first
    assert told[0]["fixed"] == [[rank, 4, rank % 2, 2, 6.0] for rank in range(4)]
    assert hosts in (["host1"] * 2 + ["host2"] * 2, ["host2"] * 2 + ["host1"] * 2)
    assert told[-1] == {"elastic": [[0, 2], [1, 2]]}
    again = min(one["time"] for one in told if one.get("size") == 2)
    assert again - lost < 5.0
    assert any("on host 10.77.0.2 failed" in line for line in others)
