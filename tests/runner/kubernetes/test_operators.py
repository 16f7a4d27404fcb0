"""Kubeflow's kinds of jobs on a real API server that has their definitions, and a TrainJob that runs: its operator is
played here, pods, scheduler and nodes are real."""

import copy
import json
import os
import threading
from pathlib import Path

import pytest
import yaml

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
from tools.kubernetes_bed import kept
from tools.kubernetes_bed.client import Refused

pytestmark = ON_BED
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
KINDS = [
    ("kubeflow/mpijob-v2beta1.yaml", "mpijobs.json", "slotsPerWorker"),
    ("kubeflow/trainjob.yaml", "trainjobs.json", "suspend"),
]
TRAINER = "/apis/trainer.kubeflow.org/v1alpha1"


@pytest.fixture
def defined():
    """Installs definitions, until the test ends."""
    client, made = admin(), []

    def install(name):
        crd = definition(name)
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
    defined(crd)
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


class Trainer:
    """The operator of TrainJobs of the runtime torch-distributed, as far as such a job needs it: a headless service and
    an Indexed Job of pods, whose torchrun is configured."""

    def __init__(self):
        self._client = admin()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()
        self.trouble = ""

    def _follow(self):
        try:
            for event, job in self._client.follow(f"{TRAINER}/trainjobs"):
                if event == "ADDED":
                    self._make(job)
        except (Refused, OSError) as error:
            self.trouble = f"{type(error).__name__}: {error}"

    def _make(self, job):
        client, name, spec = admin(), job["metadata"]["name"], job["spec"]["trainer"]
        owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": name, "uid": job["metadata"]["uid"]}
        metadata = {"ownerReferences": [owner], "labels": {"trainjob": name}}
        service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"trainjob": name}}
        client.request("POST", path("", "services"), {"metadata": {**metadata, "name": name}, "spec": service})
        index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
        torchrun = {
            "PET_NNODES": str(spec["numNodes"]),
            "PET_NPROC_PER_NODE": str(spec["numProcPerNode"]),
            "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
            "PET_MASTER_PORT": "29500",
        }
        variables = [{"name": key, "value": value} for key, value in torchrun.items()]
        container = {
            "name": "node",
            "image": spec["image"],
            "command": spec["command"],
            "resources": spec["resourcesPerNode"],
            "env": [*spec["env"], *variables, {"name": "PET_NODE_RANK", "valueFrom": index}],
        }
        pod = {"restartPolicy": "Never", "subdomain": name, "containers": [container]}
        nodes = {"completionMode": "Indexed", "completions": spec["numNodes"], "parallelism": spec["numNodes"]}
        made = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {**metadata, "name": f"{name}-node-0"},
            "spec": {
                **nodes,
                "backoffLimit": 0,
                "template": {"metadata": {"labels": {"trainjob": name}}, "spec": pod},
            },
        }
        client.request("POST", path("", "jobs", group="/apis/batch/v1"), kept.stored(made))


def test_a_trainjob_trains(defined):
    defined("trainjobs.json")
    job = copy.deepcopy(yaml.safe_load((DEPLOY / "kubeflow/trainjob.yaml").read_text()))
    program = SUM.replace("horovod.numpy", "horovod.torch").replace(
        "hvd.allreduce(np.array([float(hvd.rank() + 1)]), op=hvd.Sum)",
        "hvd.allreduce(torch.tensor([float(hvd.rank() + 1)]), op=hvd.Sum).numpy()",
    )
    text = "import torch\n" + program
    start = f"cat > /tmp/train.py <<'END'\n{text}\nEND\nexec torchrun /tmp/train.py"
    small = {"limits": {"memory": "2Gi"}}
    job["spec"]["trainer"].update(
        image=IMAGE, numNodes=2, numProcPerNode=2, resourcesPerNode=small, command=["sh", "-c", start]
    )
    job["metadata"]["namespace"] = NAMESPACE
    client = admin()
    secret = {"metadata": {"name": "train-key"}, "stringData": {"key": os.urandom(32).hex()}}
    client.request("POST", path("", "secrets"), secret)
    operator = Trainer()
    where = path("", "trainjobs", group=TRAINER)
    client.request("POST", where, job)
    try:

        def ended():
            found = client.request("GET", f"{path()}?labelSelector=trainjob=train")["items"]
            over = len(found) == 2 and all(each["status"].get("phase") in ("Succeeded", "Failed") for each in found)
            return over and found

        pods = until(ended, 240, f"the pods go on ({operator.trouble})")
        logs = "".join(log_of(each["metadata"]["name"]) for each in pods)
        assert [each["status"]["phase"] for each in pods] == ["Succeeded"] * 2, logs
        for rank in range(4):
            assert f"rank {rank} of 4 local {rank % 2} sums 10.0" in logs
        assert operator.trouble == ""
    finally:
        client.request("DELETE", f"{where}/train?propagationPolicy=Foreground")
        client.request("DELETE", path("train-key", "secrets"))
        until(lambda: not client.request("GET", f"{path()}?labelSelector=trainjob=train")["items"], 60)


def log_of(pod):
    code, said = kubectl("logs", pod, "-n", NAMESPACE)
    assert code == 0, said
    return said


def test_the_definitions_are_there():
    """Where they are named: a folder that has none of them is a mistake."""
    folder = os.environ.get("HVD_TEST_CRDS")
    if not folder:
        pytest.skip("no definitions of Kubeflow here (HVD_TEST_CRDS)")
    assert Path(folder, "mpijobs.json").exists()
