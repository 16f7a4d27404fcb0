"""Pods on separate hosts with separate networks: those of `horovodrun kubernetes` and of Kubeflow's MPIJobs."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
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
    """Simulated nodes that are hosts: the launcher's pod runs on host1, one rank's pod on each of the others."""

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


def run(nodes: Nodes, *argv: str) -> int:
    from horovod.runner.launch import main

    return main(["kubernetes", "--kubeconfig", nodes.kubeconfig, "--image", "i", "--name", "train", *argv])


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


def replicas(name: str) -> dict[str, Any]:
    """Return the containers of an MPIJob of deploy/kubeflow, by replica."""
    job = yaml.safe_load((DEPLOY / f"kubeflow/mpijob-{name}.yaml").read_text())
    found = job["spec"]["mpiReplicaSpecs"]
    return {"spec": job["spec"], **{kind: each["template"]["spec"]["containers"][0] for kind, each in found.items()}}


def command_of(launcher: dict[str, Any], hostfile: Path) -> str:
    """Return the container's command with this host file and a test program."""
    hostfile.write_text("host2 slots=1\nhost3 slots=1\nhost4 slots=2\n")
    command = [str(hostfile) if argument == "/etc/mpi/hostfile" else argument for argument in launcher["command"]]
    at = command.index("python")
    assert command[at:] == ["python", "/app/train.py"]
    return shlex.join([*command[:at], sys.executable, "-c", SUM])


def assert_all_sum(out: str) -> None:
    for rank, host in enumerate(("host2", "host3", "host4", "host4")):
        assert f"[{rank}]<stdout>:{host} rank {rank} {rank == 3:d} of 4 sums 10.0" in out


def test_launchers_of_mpijobs_v1(cluster: Cluster, tmp_path: Path) -> None:
    """The operator gives the launcher's pod a host file, and a script that runs programs in pods."""
    kubexec = tmp_path / "kubexec.sh"
    kubexec.write_text('#!/bin/sh\npod=$1; shift\nexec ssh "$pod" "echo by kubexec >&2; $*"\n')
    kubexec.chmod(0o755)
    command = command_of(replicas("v1")["Launcher"], tmp_path / "hostfile")
    done = cluster.launcher.run(command, env={"OMPI_MCA_plm_rsh_agent": str(kubexec)})
    assert done.returncode == 0, done.stderr
    assert_all_sum(done.stdout)


# The parts of a container of deploy/docker/ssh.Dockerfile that matter to ssh: its files, its user, and the
# operator's keys mounted as a Secret, owned by root and readable by all. Private mounts ensure that nothing
# stays. The hosts have servers of their own at 2222. The one capability lets the user reach a Python that may
# lie in root's home.
POD = """
set -e
keys=$1 docker=$2 && shift 2
mount -t tmpfs none /mnt && mkdir /mnt/etc && cp -a /etc/. /mnt/etc && mount --bind /mnt/etc /etc
mount -t tmpfs -o mode=755 none /usr/local/bin
grep -q ^horovod: /etc/passwd || echo horovod:x:1000:1000::/tmp:/bin/bash >> /etc/passwd
mkdir -p -m 755 /etc/horovod/ssh && cp "$keys"/* /etc/horovod/ssh && chmod 644 /etc/horovod/ssh/*
cp "$docker"/start-sshd "$docker"/known-host /usr/local/bin
sed s/2222/2223/ "$docker"/sshd_config > /etc/horovod/sshd_config
sed s/2222/2223/ "$docker"/ssh_config > /etc/ssh/ssh_config
export HOME=/tmp
exec setpriv --reuid 1000 --regid 1000 --clear-groups --inh-caps +dac_read_search --ambient-caps +dac_read_search "$@"
"""


def test_an_mpijob_v2beta1_in_images_with_ssh(cluster: Cluster, tmp_path: Path) -> None:
    """Workers serve ssh with the operator's keys as the image's user, and the launcher accepts only these keys."""
    found = replicas("v2beta1")
    assert found["spec"]["sshAuthMountPath"] == "/etc/horovod/ssh"
    assert found["Worker"]["readinessProbe"]["tcpSocket"]["port"] == 2222
    keys = [operators_keys(tmp_path / name) for name in ("keys", "others")]

    def pod(keys: Path, *command: str) -> list[str]:
        inside = ["bash", "-c", POD, "pod", str(keys), str(DEPLOY / "docker"), *command]
        return ["unshare", "--mount", "--propagation", "private", *inside]

    servers = []
    try:
        for host in cluster.hosts[1:4]:
            servers.append(host.popen(pod(keys[0], *found["Worker"]["command"])))
            wait_for_port(host, 2223)
        launcher = ["bash", "-c", command_of(found["Launcher"], tmp_path / "hostfile")]
        done = cluster.launcher.run(pod(keys[0], *launcher))
        assert done.returncode == 0, done.stderr
        assert_all_sum(done.stdout)
        assert Path(f"/proc/{servers[0].target}").stat().st_uid == 1000
        done = cluster.launcher.run(pod(keys[1], *launcher))
        assert done.returncode != 0
        assert "its ssh host key does not match the known one" in done.stderr
    finally:
        for server in servers:
            server.send(signal.SIGTERM)
        for server in servers:
            server.wait(20)
    assert all(not host.processes() for host in cluster.hosts)


def operators_keys(folder: Path) -> Path:
    """Return the Secret that the operator creates for a job: a P-521 key in PEM, although its name says RSA."""
    folder.mkdir()
    key = folder / "id_rsa"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-m", "PEM", "-N", "", "-f", key], check=True, timeout=60
    )
    (folder / "authorized_keys").write_bytes((folder / "id_rsa.pub").read_bytes())
    return folder


def wait_for_port(host: Host, port: int) -> None:
    deadline = time.monotonic() + 30
    while port not in (found for _, found in host.listening()):
        assert time.monotonic() < deadline, f"nothing listens on {port} of {host.name}"
        time.sleep(0.05)
