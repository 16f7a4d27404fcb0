"""horovodrun without a host list in containers of cloud training services.

The containers are hosts of the test bed with the variables that those services set.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.jobs import no_leftovers, run_job
from tests.testbed.cluster import Cluster
from tests.testbed.hosts import HOME, ROOT, HostProcess, make_key

PLACE = ["bash", "-c", "echo $HOROVOD_RANK $(hostname) ${SM_CURRENT_HOST-}${CLUSTER_SPEC-none}"]
SAGEMAKER = {"SM_HOSTS": '["host1", "host2"]', "SM_CURRENT_HOST": "host1", "SM_NUM_GPUS": "0"}
SPEC = {
    "cluster": {"workerpool0": ["proxy-of-the-first:2200"], "workerpool1": ["host2:2200", "host3:2200"]},
    "environment": "cloud",
    "task": {"type": "workerpool0", "index": 0},
}


def test_a_job_on_sagemaker_machines(cluster: Cluster) -> None:
    done = run_job(cluster, "-np", "3", *PLACE, env=SAGEMAKER)
    assert (done.code, done.messages[0]) == (0, "SageMaker has given this job host1:2,host2:2; -H names others")
    ranks = [line.partition(":")[2] for line in done.lines]
    assert ranks == ["0 host1 host1none", "1 host1 host1none", "2 host2 none"], "host2 is not told that it is host1"


# The command of containers that all start the same way


def start(number: int, *argv: str, service: str = "sagemaker", **variables: str) -> tuple[list[str], dict[str, str]]:
    """Start deploy/clouds/start.sh in the container on that host."""
    if service == "sagemaker":
        names = '["host1", "host2", "host3"]'
        environ = {"SM_HOSTS": names, "SM_CURRENT_HOST": f"host{number}", "SSH_PORT": "2200"}
    else:
        task = {"type": "workerpool0" if number == 1 else "workerpool1", "index": max(0, number - 2)}
        environ = {"CLUSTER_SPEC": json.dumps({**SPEC, "task": task})}  # it contains the port
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {"SSHD": "/usr/sbin/sshd -f /run/bed/sshd_config", "PATH": path, **environ, **variables}
    return [str(ROOT / "deploy/clouds/start.sh"), *argv], env


def start_others(cluster: Cluster, *argv: str, **variables: str) -> list[HostProcess]:
    """Start all containers except the first."""
    processes = []
    for number in (2, 3):
        command, env = start(number, *argv, **variables)
        processes.append(cluster.host(number).popen(command, env=env))
    return processes


@pytest.mark.parametrize(
    ("service", "code"),
    [
        ("sagemaker", 0),
        pytest.param("sagemaker", 3, marks=pytest.mark.heavy),
        pytest.param("vertex", 0, marks=pytest.mark.heavy),
    ],
)
def test_all_containers_start_alike_and_end_with_the_job(cluster: Cluster, service: str, code: int) -> None:
    argv = ["-np", "3", "bash", "-c", f"echo $HOROVOD_RANK $(hostname); exit {code}"]
    processes = start_others(cluster, *argv, service=service)
    command, env = start(1, *argv, service=service)
    done = cluster.host(1).run(command, env=env, timeout=90)
    assert done.returncode == code, done.stderr
    if code == 0:
        assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>:{rank} host{rank + 1}" for rank in range(3)]
    assert [other.wait(20) for other in processes] == [0, 0], "they have ended in order, whatever the job's end"
    assert not cluster.host(2).path(f"{HOME}/.horovod-start.pid").exists()
    no_leftovers(cluster)


@pytest.mark.heavy
def test_key_generated_for_the_job(cluster: Cluster) -> None:
    """The machines accept only this key, and the ranks do not see it."""
    folders = [cluster.host(number).path(f"{HOME}/.ssh") for number in (1, 2, 3)]
    before = [{path: path.read_bytes() for path in folder.iterdir()} for folder in folders]
    try:
        for folder in folders:
            (folder / "id_ed25519").unlink()
            (folder / "authorized_keys").unlink()
        argv = ["-np", "3", "bash", "-c", "echo key ${SSH_PRIVATE_KEY-none}"]
        key = {"SSH_PRIVATE_KEY": make_key("a job")[0].strip()}
        processes = start_others(cluster, *argv, **key)
        command, env = start(1, *argv, **key)
        done = cluster.host(1).run(command, env=env, timeout=90)
        assert (done.returncode, done.stdout.count("key none")) == (0, 3), done.stderr
        assert [other.wait(20) for other in processes] == [0, 0]
        assert oct((folders[0] / "id_ed25519").stat().st_mode & 0o777) == "0o600"
    finally:
        for files in before:
            for path, data in files.items():
                path.write_bytes(data)
                path.chmod(0o600)
    no_leftovers(cluster)


STOPS = """
import signal, sys, time
import horovod.numpy as hvd
hvd.init()
print("begun", flush=True)
while not hvd.should_stop():
    time.sleep(0.05)
print("stopped in order", flush=True)
"""


@pytest.mark.heavy
def test_a_cloud_warning_stops_all_ranks_gracefully(cluster: Cluster, tmp_path: Path) -> None:
    """All containers get SIGTERM, as managed spot training sends it."""
    argv = ["-np", "3", sys.executable, "-c", STOPS]
    processes = start_others(cluster, *argv)
    command, env = start(1, *argv)
    out = tmp_path / "out"
    with out.open("w") as file:
        first = cluster.host(1).popen(command, env=env, stdout=file, cwd=ROOT)
    deadline = time.monotonic() + 60
    while out.read_text().count("begun") < 3:
        assert time.monotonic() < deadline, out.read_text()
        time.sleep(0.1)
    for container in (*processes, first):
        (script,) = Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text().split()  # of nsenter
        os.kill(int(script), signal.SIGTERM)
    assert first.wait(60) == 143
    assert out.read_text().count("stopped in order") == 3
    assert [other.wait(20) for other in processes] == [0, 0]
    no_leftovers(cluster)
