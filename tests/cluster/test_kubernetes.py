"""Pods on hosts of their own, with their own networks: of `horovodrun kubernetes`, and of Kubeflow's MPIJobs."""

from __future__ import annotations

import shlex
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.runner.kubernetes import fake
from tests.testbed.cluster import Cluster
from tests.testbed.hosts import Host

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SUM = """
import horovod.numpy as hvd, numpy as np, socket
hvd.init()
total = hvd.allreduce(np.array([float(hvd.rank() + 1)]), op=hvd.Sum)
print(socket.gethostname(), "rank", hvd.rank(), hvd.local_rank(), "of", hvd.size(), "sums", total[0], flush=True)
"""


class Nodes(fake.Cluster):
    """Whose nodes are hosts: the launcher's pod runs on host1, those of the ranks on the others, one on each."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.bed = cluster
        self.address = "host1"
        self.hosts: dict[str, Host] = {}

    def spawn(self, pod: Any, command: list[str], environ: dict[str, str], log: Any) -> Any:
        index = pod["metadata"]["annotations"].get(fake.INDEX)
        host = self.bed.host(1 if index is None else 2 + int(index) % 3)
        self.hosts[pod["metadata"]["name"]] = host
        passed = {key: value for key, value in environ.items() if key not in ("PATH", "HOME")}
        return host.popen(command, env=passed, stdout=log, stderr=log)

    def send(self, process: Any, number: int) -> None:
        process.send(number)


def run(nodes: Nodes, *words: str) -> int:
    from horovod.runner.launch import main

    return main(["kubernetes", "--kubeconfig", nodes.kubeconfig, "--image", "i", "--name", "train", *words])


def test_pods_find_the_launcher_and_one_another(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("kubernetes")
    from tests.runner.kubernetes.test_command import until

    with Nodes(cluster) as nodes:
        assert run(nodes, "-np", "6", "--slots-per-pod", "2", "--", sys.executable, "-c", SUM) == 0
        until(lambda: not nodes.objects["pods"])
    out = capfd.readouterr().out
    for rank in range(6):
        assert f"[{rank}]<stdout>:host{2 + rank // 2} rank {rank} {rank % 2} of 6 sums 21.0" in out
    assert all(not host.processes() for host in cluster.hosts)


@pytest.mark.heavy
def test_a_node_that_is_lost(cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("kubernetes")
    from tests.runner.kubernetes.test_command import until
    from tests.runner.kubernetes.test_elastic import TRAIN, step

    codes = []
    with Nodes(cluster) as nodes:
        program = TRAIN.replace("ASKS", "False")
        given = ("-np", "3", "--min-np", "2", "--grace", "10", "--", sys.executable, "-c", program, str(tmp_path))
        thread = threading.Thread(target=lambda: codes.append(run(nodes, *given)))
        thread.start()
        until(lambda: step(tmp_path, 3), 60)
        killed = time.time()
        cluster.host(3).kill_all()
        until(lambda: step(tmp_path, 2, killed), 30)
        print("survivors step again after", (step(tmp_path, 2, killed) or 0) - killed)
        until(lambda: step(tmp_path, 3, killed), 60)
        (tmp_path / "enough").touch()
        thread.join(60)
        assert codes == [0]
    out = capfd.readouterr().out
    assert "sizes [3, 2, 3]" in out


@pytest.mark.parametrize(("name", "agent"), [("v1", True), ("v2beta1", False)])
def test_launchers_of_mpijobs(cluster: Cluster, tmp_path: Path, name: str, agent: bool) -> None:
    """What the operator gives the launcher's pod: a host file, and in v1 a script that runs programs in pods."""
    job = yaml.safe_load((DEPLOY / f"kubeflow/mpijob-{name}.yaml").read_text())
    (container,) = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("host2 slots=1\nhost3 slots=1\nhost4 slots=2\n")
    kubexec = tmp_path / "kubexec.sh"
    kubexec.write_text('#!/bin/sh\npod=$1; shift\nexec ssh "$pod" "echo by kubexec >&2; $*"\n')
    kubexec.chmod(0o755)
    program = [sys.executable, "-c", SUM]
    command = [str(hostfile) if word == "/etc/mpi/hostfile" else word for word in container["command"]]
    at = command.index("python")
    assert command[at:] == ["python", "/app/train.py"]
    env = {"OMPI_MCA_plm_rsh_agent": str(kubexec)} if agent else {}
    done = cluster.launcher.run(shlex.join([*command[:at], *program]), env=env)
    assert done.returncode == 0, done.stderr
    for rank, host in enumerate(("host2", "host3", "host4", "host4")):
        assert f"[{rank}]<stdout>:{host} rank {rank} {rank == 3:d} of 4 sums 10.0" in done.stdout
