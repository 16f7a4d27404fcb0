"""Kubeflow's operators, played as far as the jobs of `deploy/kubeflow` need them: of a job they make real pods."""

import json
import threading
import time

from tests.runner.kubernetes.real import NAMESPACE, admin, path, until
from tests.testbed.hosts import make_key
from tools.kubernetes_bed import kept

MPI = "/apis/kubeflow.org/v2beta1"
TRAINER = "/apis/trainer.kubeflow.org/v1alpha1"
TRAINING = "/apis/kubeflow.org/v1"
PYTORCHJOBS = {  # whatever its fields are: Kubeflow's own definition of it is not at hand
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "pytorchjobs.kubeflow.org"},
    "spec": {
        "group": "kubeflow.org",
        "names": {"kind": "PyTorchJob", "plural": "pytorchjobs", "singular": "pytorchjob"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


class Operator:
    """Follows jobs of one kind. `trouble`: why it has ended."""

    def __init__(self, group, plural, make):
        self.trouble = ""
        self._where, self._make = f"{group}/{plural}", make
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self):
        client, seen = admin(), set()
        try:
            while True:  # a server ends what it tells of a kind that has just been defined
                for event, job in client.follow(self._where):
                    if event == "ADDED" and job["metadata"]["uid"] not in seen:
                        seen.add(job["metadata"]["uid"])
                        self._make(admin(), job)
                time.sleep(0.2)
        except Exception as error:
            self.trouble = f"{type(error).__name__}: {error}"


def metadata_of(job, name, **labels):
    owner = {key: job[key] for key in ("apiVersion", "kind")}
    owner |= {key: job["metadata"][key] for key in ("name", "uid")}
    return {"name": name, "ownerReferences": [owner], "labels": {"of-job": job["metadata"]["name"], **labels}}


def service(client, job, name, **labels):
    """A headless one."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True}
    spec["selector"] = {"of-job": job["metadata"]["name"], **labels}
    client.request("POST", path("", "services"), {"metadata": metadata_of(job, name), "spec": spec})


def variables(**values):
    return [{"name": name, "value": value} for name, value in values.items()]


def trainjob(client, job):
    """As Trainer v2 with the runtime torch-distributed: an Indexed Job, whose torchrun is configured."""
    name, spec = job["metadata"]["name"], job["spec"]["trainer"]
    service(client, job, name)
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    torchrun = variables(
        PET_NNODES=str(spec["numNodes"]),
        PET_NPROC_PER_NODE=str(spec["numProcPerNode"]),
        PET_MASTER_ADDR=f"{name}-node-0-0.{name}",
        PET_MASTER_PORT="29500",
    )
    container = {
        "name": "node",
        "image": spec["image"],
        "command": spec["command"],
        "resources": spec["resourcesPerNode"],
        "env": [*spec["env"], *torchrun, {"name": "PET_NODE_RANK", "valueFrom": index}],
    }
    pod = {"restartPolicy": "Never", "subdomain": name, "containers": [container]}
    many = {"completions": spec["numNodes"], "parallelism": spec["numNodes"], "backoffLimit": 0}
    metadata = metadata_of(job, f"{name}-node-0")
    template = {"metadata": {"labels": metadata["labels"]}, "spec": pod}
    made = {"metadata": metadata, "spec": {**many, "completionMode": "Indexed", "template": template}}
    client.request("POST", path("", "jobs", group="/apis/batch/v1"), kept.stored(made))


def mpijob(client, job):
    """As the MPI operator, v2beta1, for Open MPI: a host file, a key of ssh, pods of workers with sshd; once these are
    ready, a Job for the launcher."""
    name, spec = job["metadata"]["name"], job["spec"]
    service(client, job, name)
    workers = [f"{name}-worker-{number}" for number in range(spec["mpiReplicaSpecs"]["Worker"]["replicas"])]
    hosts = "".join(f"{each}.{name}.{NAMESPACE}.svc slots={spec['slotsPerWorker']}\n" for each in workers)
    config = {"metadata": metadata_of(job, f"{name}-config"), "data": {"hostfile": hosts}}
    client.request("POST", path("", "configmaps"), config)
    private, public = make_key("mpi-operator")
    keys = {"ssh-privatekey": private, "ssh-publickey": public}
    client.request("POST", path("", "secrets"), {"metadata": metadata_of(job, f"{name}-ssh"), "stringData": keys})
    for each in workers:
        pod = mpi_pod(job, "Worker", name)
        pod |= {"hostname": each, "subdomain": name}
        client.request("POST", path(), {"metadata": metadata_of(job, each, role="worker"), "spec": pod})
    until(lambda: all(is_ready(client.request("GET", path(each))) for each in workers), 120)
    template = {"metadata": {"labels": {"of-job": name, "role": "launcher"}}, "spec": mpi_pod(job, "Launcher", name)}
    made = {"completions": 1, "parallelism": 1, "backoffLimit": 0, "template": template}
    metadata = metadata_of(job, f"{name}-launcher")
    client.request("POST", path("", "jobs", group="/apis/batch/v1"), {"metadata": metadata, "spec": made})


def is_ready(pod):
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", []))


def mpi_pod(job, role, name):
    """A pod's spec, with what the operator mounts."""
    spec = json.loads(json.dumps(job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]))
    items = [("ssh-privatekey", "id_rsa"), ("ssh-publickey", "id_rsa.pub"), ("ssh-publickey", "authorized_keys")]
    files = [{"key": key, "path": to} for key, to in items]
    place = job["spec"].get("sshAuthMountPath", "/root/.ssh")
    ssh = {"secretName": f"{name}-ssh", "items": files, **({"defaultMode": 0o600} if place == "/root/.ssh" else {})}
    volumes, mounts = [{"name": "ssh-auth", "secret": ssh}], [{"name": "ssh-auth", "mountPath": place}]
    if role == "Launcher":
        volumes.append({"name": "mpi-job-config", "configMap": {"name": f"{name}-config"}})
        mounts.append({"name": "mpi-job-config", "mountPath": "/etc/mpi"})
    (container,) = spec["containers"]
    container["volumeMounts"] = [*container.get("volumeMounts", []), *mounts]
    return {**spec, "restartPolicy": "Never", "volumes": [*spec.get("volumes", []), *volumes]}


def pytorchjob(client, job):
    """As the training operator: pods by their roles, a rank in each; the master is told that it is at localhost itself,
    as by some versions."""
    name, replicas = job["metadata"]["name"], job["spec"]["pytorchReplicaSpecs"]
    size = sum(each["replicas"] for each in replicas.values())
    service(client, job, f"{name}-master-0", role="master")
    for role, each in replicas.items():
        for number in range(each["replicas"]):
            rank = number if role == "Master" else number + replicas["Master"]["replicas"]
            spec = {**each["template"]["spec"], "restartPolicy": "Never"}
            (container,) = spec["containers"]
            told = variables(
                MASTER_ADDR="localhost" if role == "Master" else f"{name}-master-0",
                MASTER_PORT="23456",
                WORLD_SIZE=str(size),
                RANK=str(rank),
            )
            spec["containers"] = [{**container, "env": [*container["env"], *told]}]
            metadata = metadata_of(job, f"{name}-{role.lower()}-{number}", role=role.lower())
            client.request("POST", path(), {"metadata": metadata, "spec": spec})
