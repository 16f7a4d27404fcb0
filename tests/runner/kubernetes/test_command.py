"""`horovodrun kubernetes` with a cluster in this process whose pods are real processes."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import yaml

from horovod.runner.kubernetes import api, follow, manifests
from horovod.runner.launch import main
from tests.runner.kubernetes.fake import Cluster

pytest.importorskip("kubernetes")
pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def cluster():
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def idle():
    """A cluster whose nodes run nothing; tests set the pods' statuses."""
    with Cluster(runs=False) as cluster:
        yield cluster


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def argv(cluster, *rest):
    return ["kubernetes", "--kubeconfig", cluster.kubeconfig, "--image", "app:1", "--port", str(free_port()), *rest]


def run(cluster, *rest):
    return main(argv(cluster, "--name", "train", *rest))


def ask(cluster, action, *rest):
    return main(["kubernetes", action, "--kubeconfig", cluster.kubeconfig, *rest])


def nothing_left(cluster):
    return not any(cluster.objects[kind] for kind in ("jobs", "pods", "services", "secrets"))


def until(holds, seconds=30):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it has not come to that"
        time.sleep(0.02)


SUM = """
import horovod.numpy as hvd, numpy as np
hvd.init()
total = hvd.allreduce(np.array([float(hvd.rank() + 1)]), op=hvd.Sum)
print("rank", hvd.rank(), "of", hvd.size(), hvd.local_size(), "sums", total[0], flush=True)
"""
FAIL = SUM + "if hvd.rank() == 1: raise SystemExit(7)\nhvd.barrier()"
FOREVER = SUM + "import time\ntime.sleep(600)"


@pytest.mark.smoke
def test_a_job_trains_and_leaves_nothing(cluster, capfd):
    secret = []
    cluster.place = lambda pod: secret.append(cluster.objects["secrets"]["train"]["data"]["token"])
    args = ("-np", "4", "--slots-per-pod", "2", "--env", "A=b", "--", sys.executable, "-c", SUM)
    assert run(cluster, *args) == 0
    out, err = capfd.readouterr()
    for rank in range(4):
        assert f"[{rank}]<stdout>:rank {rank} of 4 4 sums 10.0" in out
    assert "job train in namespace default: 4 ranks, 2 pods for them" in err
    assert nothing_left(cluster)
    assert secret
    assert secret[0] not in str(cluster.requests)


@pytest.mark.heavy
def test_the_exit_code_is_that_of_the_rank_that_failed_first(cluster, capfd):
    assert run(cluster, "-np", "2", "--", sys.executable, "-c", FAIL) == 7
    assert "rank 1 on host" in capfd.readouterr().err
    assert nothing_left(cluster)


def test_a_finished_job_without_pods(idle):
    labels = {manifests.INSTANCE: "train", manifests.COMPONENT: "launcher", manifests.MANAGER: manifests.MANAGED}
    job = {
        "metadata": {"name": "train", "labels": labels, "annotations": {manifests.PODS: "1"}},
        "spec": {"completions": 1},
        "status": {"conditions": [{"type": "Complete", "status": "True"}]},
    }
    idle.create("jobs", job)
    assert ask(idle, "attach", "train") == 0


def test_interrupt_while_the_job_is_created(idle):
    idle.answering = lambda *_: (os.kill(os.getpid(), signal.SIGINT), time.sleep(0.5))
    assert run(idle, "-np", "1", "--", "true") == 130
    assert nothing_left(idle)


@pytest.mark.parametrize("foreign", [False, True])
def test_create_request_without_response(idle, capfd, monkeypatch, foreign):
    monkeypatch.setattr(api, "SECONDS", 0.3)
    if foreign:
        idle.create("jobs", {"metadata": {"name": "train"}, "spec": {"suspend": True}})
    idle.answering = lambda *_: time.sleep(0.6)
    assert run(idle, "-np", "1", "--", "true") == 1
    assert "cannot be reached" in capfd.readouterr().err
    assert list(idle.objects["jobs"]) == (["train"] if foreign else [])


def test_an_existing_service_is_left_alone(idle, capfd):
    idle.create("services", {"metadata": {"name": "train"}})
    assert run(idle, "-np", "1", "--", "true") == 1
    assert "error: there is a Service train, perhaps left by another job train, in namespace" in capfd.readouterr().err
    assert list(idle.objects["services"]) == ["train"]
    assert not idle.objects["jobs"]
    assert not idle.objects["secrets"]


@pytest.mark.heavy
def test_interrupt_deletes_all(cluster):
    command = [sys.executable, "-m", "horovod.runner", *argv(cluster, "--name", "train", "-np", "2", "--grace", "5")]
    process = subprocess.Popen(
        [*command, "--", sys.executable, "-c", FOREVER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        line = ""
        while "of 2" not in line:
            line = process.stdout.readline()
            assert line
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "stopped by SIGINT; deleting job train" in err
    assert nothing_left(cluster)
    assert all(each.poll() is not None for each in cluster.processes.values())


@pytest.mark.heavy
def test_detach_attach_status_delete(cluster, capfd):
    command = ("-np", "2", "--grace", "5", "--detach", "--", sys.executable, "-c", FOREVER)
    assert run(cluster, *command) == 0
    assert "`horovodrun kubernetes attach train` shows it" in capfd.readouterr().err
    assert run(cluster, *command) == 1
    assert "there is a job train in namespace default already" in capfd.readouterr().err
    until(
        lambda: (
            len(cluster.pods()) == 2
            and os.path.getsize(cluster.log_of(cluster.pods("launcher")[0]["metadata"]["name"]))
        )
    )
    assert ask(cluster, "status", "train") == 0
    out = capfd.readouterr().out
    assert out.startswith("job train in namespace default: running\n")
    assert out.count("node-a  running") == 3
    assert ask(cluster, "status") == 0
    assert capfd.readouterr().out == "train\trunning\n"
    deleting = threading.Timer(1.0, ask, (cluster, "delete", "train"))
    deleting.start()
    assert ask(cluster, "attach", "train") != 0
    deleting.join()
    assert nothing_left(cluster)
    assert ask(cluster, "delete", "train") == 2
    assert "there is no job train in namespace default" in capfd.readouterr().err


@pytest.mark.parametrize(("verb", "resource"), [("create", "jobs"), ("patch", "jobs"), ("watch", "pods")])
def test_forbidden_requests(idle, capfd, verb, resource):
    idle.denied.add((verb, resource))
    assert run(idle, "-np", "2", "--", "true") == 1
    err = capfd.readouterr().err
    assert f"error: you are not allowed to {verb} {resource} in namespace default: {resource}.batch is forbidden" in err
    assert f"`kubectl auth can-i {verb} {resource} -n default` asks for it" in err
    assert nothing_left(idle)


def test_quota(idle, capfd, monkeypatch):
    monkeypatch.setattr(follow, "SETTLES", 0.2)
    idle.quota = True
    assert run(idle, "-np", "2", "--start-timeout", "2", "--", "true") == 1
    err = capfd.readouterr().err
    assert "waited 2 s (--start-timeout): 0 of 2 pods have started; Error creating: pods" in err
    assert "exceeded quota: few, requested: pods=1, limited: pods=1" in err
    assert nothing_left(idle)


def test_no_cluster(idle, capfd, tmp_path, monkeypatch):
    assert main(["kubernetes", "status", "--kubeconfig", str(tmp_path / "none")]) == 2
    assert "the kubeconfig" in capfd.readouterr().err
    assert ask(idle, "status", "--context", "there") == 2
    assert "--context must be one of here, got there" in capfd.readouterr().err
    missing = tmp_path / "config"
    with open(idle.kubeconfig) as file, socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # without listening
        port = sock.getsockname()[1]
        missing.write_text(file.read().replace(f":{idle.server.server_port}", f":{port}"))
        assert main(["kubernetes", "status", "--kubeconfig", str(missing)]) == 1
    assert f"the API server http://127.0.0.1:{port} cannot be reached" in capfd.readouterr().err
    monkeypatch.setitem(sys.modules, "kubernetes.config", None)
    assert ask(idle, "status") == 2
    assert "`pip install 'horovod[kubernetes]'` brings it" in capfd.readouterr().err


def test_dry_run_does_not_contact_a_cluster(capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "kubernetes.config", None)
    assert main(["kubernetes", "-np", "2", "--image", "app:1", "--name", "train", "--dry-run", "--", "true"]) == 0
    found = list(yaml.safe_load_all(capfd.readouterr().out))
    assert [(each["kind"], each["metadata"]["name"]) for each in found] == [
        *[("Secret", "train"), ("Service", "train"), ("Job", "train"), ("Job", "train-workers")]
    ]
    assert not any("suspend" in each["spec"] for each in found if each["kind"] == "Job")
