"""Kubeflow's kinds of jobs on a real API server that has their definitions, and two kinds that run: their operators
are played here, pods, scheduler and nodes are real."""

import contextlib
import json
import os

import pytest
import yaml

from tests.runner.kubernetes.operators import (
    MPI,
    PYTORCHJOBS,
    TRAINER,
    TRAINING,
    Operator,
    mpijob,
    pytorchjob,
    trainjob,
)
from tests.runner.kubernetes.real import (
    IMAGE,
    NAMESPACE,
    ON_BED,
    SUM,
    admin,
    kubectl,
    names_in,
    path,
    until,
)
from tests.runner.kubernetes.test_deploy import DEPLOY, definition

pytestmark = ON_BED
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
KINDS = [
    ("kubeflow/mpijob-v2beta1.yaml", "mpijobs.json", "slotsPerWorker"),
    ("kubeflow/trainjob.yaml", "trainjobs.json", "suspend"),
]


@pytest.fixture
def defined():
    """Installs definitions, until the test ends."""
    client, made = admin(), []

    def install(crd):
        client.request("POST", CRDS, crd)
        made.append(crd["metadata"]["name"])

        def established():
            found = client.request("GET", f"{CRDS}/{made[-1]}")["status"].get("conditions") or []
            return any((each["type"], each["status"]) == ("Established", "True") for each in found)

        until(established, 30, "the definition is not taken")

    yield install
    for each in made:
        client.request("DELETE", f"{CRDS}/{each}")
        until(lambda: each not in names_in(client, CRDS), 60)  # noqa: B023


@pytest.mark.parametrize(("manifest", "crd", "no_word"), KINDS)
def test_the_server_takes_the_jobs_of_deploy(defined, manifest, crd, no_word):
    defined(definition(crd))
    code, said = kubectl("create", "--dry-run=server", "-f", str(DEPLOY / manifest))
    assert code == 0, said
    assert "created (server dry run)" in said
    broken = yaml.safe_load((DEPLOY / manifest).read_text())
    broken["spec"][no_word] = "a word"
    code, said = kubectl("create", "--validate=false", "--dry-run=server", "-f", "-", stdin=json.dumps(broken))
    assert code != 0
    assert no_word in said


@pytest.mark.parametrize("manifest", ["kubernetes/role.yaml", "kustomize/base/job.yaml"])
def test_the_server_takes_what_needs_no_operator(manifest):
    found = list(yaml.safe_load_all((DEPLOY / manifest).read_text()))
    for each in found:
        code, said = kubectl(
            *("create", "--validate=false", "--dry-run=server", "-f", "-"),
            stdin=each,
            config=os.environ["HVD_TEST_KUBECONFIG"],
        )
        assert code == 0, said


SUMS = "import torch\n" + SUM.replace("horovod.numpy", "horovod.torch").replace(
    "hvd.allreduce(np.array([float(hvd.rank() + 1)]), op=hvd.Sum)",
    "hvd.allreduce(torch.tensor([float(hvd.rank() + 1)]), op=hvd.Sum).numpy()",
)


def started_by(program):
    """A command that an image without the program runs."""
    return ["sh", "-c", f"cat > /tmp/train.py <<'END'\n{SUMS}\nEND\n{program} /tmp/train.py"]


@contextlib.contextmanager
def run(kind, job, group, plural, make, size):
    """The logs of its pods, once all have ended."""
    client = admin()
    secret = {"metadata": {"name": "train-key"}, "stringData": {"key": os.urandom(32).hex()}}
    client.request("POST", path("", "secrets"), secret)
    operator, where = Operator(group, plural, make), path("", plural, group=group)
    client.request("POST", where, job)
    try:

        def ended():
            found = client.request("GET", f"{path()}?labelSelector=of-job=train")["items"]
            over = len(found) == size and all(each["status"].get("phase") in ("Succeeded", "Failed") for each in found)
            return over and found

        found = until(ended, 240, f"the pods of the {kind} go on ({operator.trouble})")
        logs = "".join(log_of(each["metadata"]["name"]) for each in found)
        assert [each["status"]["phase"] for each in found] == ["Succeeded"] * size, logs
        assert operator.trouble == ""
        yield logs
    finally:
        client.request("DELETE", f"{where}/train?propagationPolicy=Foreground")
        client.request("DELETE", path("train-key", "secrets"))
        until(lambda: not client.request("GET", f"{path()}?labelSelector=of-job=train")["items"], 150)
        until(lambda: not [each for each in names_in(client, path("", "services")) if each.startswith("train")], 60)


def test_a_trainjob_trains(defined):
    defined(definition("trainjobs.json"))
    job = yaml.safe_load((DEPLOY / "kubeflow/trainjob.yaml").read_text())
    small = {"limits": {"memory": "2Gi"}}
    command = started_by("exec torchrun")
    job["spec"]["trainer"].update(image=IMAGE, numNodes=2, numProcPerNode=2, resourcesPerNode=small, command=command)
    with run("TrainJob", job, TRAINER, "trainjobs", trainjob, 2) as logs:
        for rank in range(4):
            assert f"rank {rank} of 4 local {rank % 2} sums 10.0" in logs


def test_a_pytorchjob_trains(defined):
    defined(PYTORCHJOBS)
    job = json.loads(json.dumps(yaml.safe_load((DEPLOY / "kubeflow/pytorchjob.yaml").read_text())))
    for each in job["spec"]["pytorchReplicaSpecs"].values():
        (container,) = each["template"]["spec"]["containers"]
        before = container["command"][2].partition("exec ")[0]  # where the master is
        container.update(image=IMAGE, resources={}, command=started_by(f"{before} exec python"))
    with run("PyTorchJob", job, TRAINING, "pytorchjobs", pytorchjob, 4) as logs:
        for rank in range(4):
            assert f"rank {rank} of 4 local 0 sums 10.0" in logs


def test_an_mpijob_trains(defined):
    """Of v2beta1, by ssh: `horovodrun` in the launcher's pod reads the operator's host file."""
    defined(definition("mpijobs.json"))
    job = json.loads(json.dumps(yaml.safe_load((DEPLOY / "kubeflow/mpijob-v2beta1.yaml").read_text())))
    for role, each in job["spec"]["mpiReplicaSpecs"].items():
        (container,) = each["template"]["spec"]["containers"]
        container.update(image=IMAGE, resources={})
        if role == "Launcher":
            container["command"] = [*container["command"][:-1], "-c", SUM]
    client = admin()
    secret_names = names_in(client, path("", "secrets"))
    where = path("", "mpijobs", group=MPI)
    operator = Operator(MPI, "mpijobs", mpijob)
    client.request("POST", where, job)
    launcher = f"{path()}?labelSelector=of-job=train,role=launcher"
    try:

        def ended():
            assert operator.trouble == ""
            found = client.request("GET", launcher)["items"]
            return [each for each in found if each["status"].get("phase") in ("Succeeded", "Failed")]

        (pod,) = until(ended, 240, f"the launcher goes on ({operator.trouble})")
        log = log_of(pod["metadata"]["name"])
        assert pod["status"]["phase"] == "Succeeded", log
        for rank in range(4):
            assert f"[{rank}]<stdout>:rank {rank} of 4 local 0 sums 10.0" in log
    finally:
        client.request("DELETE", f"{where}/train?propagationPolicy=Foreground")
        until(lambda: not client.request("GET", f"{path()}?labelSelector=of-job=train")["items"], 150)
        until(lambda: names_in(client, path("", "secrets")) <= secret_names, 60)


def log_of(pod):
    code, said = kubectl("logs", pod, "-n", NAMESPACE)
    assert code == 0, said
    return said
