"""Kubernetes objects of a job, as dicts that the API accepts.

The launcher's Job owns all other objects, so deleting it deletes them. It is created first, in suspended state, and is
resumed once the objects that its pod needs exist.

    Secret   NAME          token with which pods authenticate to the launcher
    Service  NAME          headless; its name and launcher.NAME.NAMESPACE.svc resolve to the launcher's pod
    Job      NAME          launcher's pod
    Job      NAME-workers  pods of the ranks, as an Indexed Job
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Mapping, Sequence
from typing import Any

from horovod._version import __version__
from horovod.common.contract import boot
from horovod.runner.kubernetes.request import CONTAINER, Request, container_of
from horovod.runner.kubernetes.values import literal

Manifest = dict[str, Any]

LAUNCHER, WORKER = "launcher", "worker"
INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
MANAGER = "app.kubernetes.io/managed-by"
MANAGED = "horovodrun"
PODS, PATIENCE = "horovodrun/pods", "horovodrun/patience"
"""Annotations of the launcher's Job: the number of worker pods that must start, and the seconds for this."""
MARK = "horovodrun/created-by"
"""Annotation of the launcher's Job with a random mark. By it, a horovodrun that got no answer recognizes its Job."""
TOKEN_VARIABLE = "HOROVOD_POD_TOKEN"
POD_VARIABLE, NODE_VARIABLE = "HOROVOD_POD_NAME", "HOROVOD_POD_NODE"
NAMESPACE_VARIABLE = "HOROVOD_POD_NAMESPACE"
RETRIES = 1_000_000
"""Number of retries of an elastic job's pods. In practice no limit, because the job continues without failed pods."""
SHM_PATH = "/dev/shm"
LEAST_KEEP = 60
"""Seconds for which the Job of the worker pods is kept after its end, so that failures can be explained."""
LAUNCHER_HOST = "launcher"
"""Host name of the launcher's pod in the domain of the Service."""
_LAUNCHER_RESOURCES = {"requests": {"cpu": "100m", "memory": "128Mi"}}
_STAYS = {
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}
"""Annotations that keep autoscalers from evicting the launcher's pod. The job ends without that pod."""


def workers_name(name: str) -> str:
    """Return the name of the Job that contains the worker pods."""
    return f"{name}-workers"


def selector(name: str, component: str = "") -> str:
    """Return a label selector for the pods of a job. It excludes pods of other applications that use the same name."""
    return f"{INSTANCE}={name},{MANAGER}={MANAGED}" + (f",{COMPONENT}={component}" if component else "")


def is_part(thing: Mapping[str, Any], name: str) -> bool:
    """Return True if the object was created by horovodrun for job `name`.

    The label with the application's name alone does not prove this, because other programs use the same label.
    """
    labels = thing["metadata"].get("labels") or {}
    return labels.get(INSTANCE) == name and labels.get(MANAGER) == MANAGED


def all_of(request: Request, token: str) -> list[Manifest]:
    """Return all Kubernetes objects of the job. The first is the launcher's Job, which owns the others.

    `token` must be random and at least 32 characters long.
    """
    once = {"backoffLimit": 0, "completions": 1, "parallelism": 1, "ttlSecondsAfterFinished": request.keep}
    launcher = _job(request, request.name, LAUNCHER, once)
    launcher["metadata"]["annotations"] = {
        PODS: str(request.size // request.slots),
        PATIENCE: f"{request.patience:g}",
    }
    return [launcher, _secret(request, token), _service(request), _workers(request)]


def applicable(parts: Sequence[Manifest]) -> list[Manifest]:
    """Return the objects in the order that `kubectl apply` needs. Objects that the pods use come before the pods."""
    return sorted(parts, key=lambda part: part["kind"] == "Job")


def suspended(job: Manifest) -> Manifest:
    """Return a copy of the Job in suspended state. The cluster starts no pods for a suspended Job."""
    return {**job, "spec": {**job["spec"], "suspend": True}}


def marked(job: Manifest, mark: str) -> Manifest:
    """Return a copy of the Job with the annotation `mark`, which identifies the command that created it."""
    metadata = job["metadata"]
    return {**job, "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), MARK: mark}}}


def has_mark(job: Mapping[str, Any], mark: str) -> bool:
    """Return True if the Job has the annotation `mark`, that is, if this command created it."""
    return (job["metadata"].get("annotations") or {}).get(MARK) == mark


def owned(manifest: Manifest, owner: Mapping[str, Any]) -> Manifest:
    """Return a copy of the object with a reference to its owner. The cluster then deletes it together with the owner.

    `owner` is a Job as returned by the API.
    """
    reference = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": False,
    }
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [reference]}}


def _metadata(request: Request, name: str, component: str = "") -> Manifest:
    labels = {
        **request.labels,
        "app.kubernetes.io/name": "horovod",
        INSTANCE: request.name,
        MANAGER: MANAGED,
        **({COMPONENT: component} if component else {}),
    }
    made: Manifest = {"name": name, "labels": labels}
    return {**made, "namespace": request.namespace} if request.namespace else made


def _secret(request: Request, token: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(request, request.name),
        "type": "Opaque",
        "immutable": True,
        "data": {"token": base64.b64encode(token.encode()).decode()},
    }


def _service(request: Request) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(request, request.name),
        "spec": {
            "clusterIP": "None",
            # Pods must resolve the launcher's name before Kubernetes reports the launcher as ready.
            "publishNotReadyAddresses": True,
            "selector": {INSTANCE: request.name, COMPONENT: LAUNCHER},
            "ports": [{"name": "launcher", "port": request.port, "targetPort": request.port, "protocol": "TCP"}],
        },
    }


def _workers(request: Request) -> Manifest:
    spec: Manifest = {
        "completionMode": "Indexed",
        "completions": request.pods,
        "parallelism": request.pods,
        "backoffLimit": RETRIES if request.elastic else 0,
        # Kubernetes deletes a finished Job after ttlSecondsAfterFinished. LEAST_KEEP leaves time to report its end.
        "ttlSecondsAfterFinished": max(request.keep, LEAST_KEEP),
    }
    if request.elastic:  # An evicted pod must not count as a failure, because Kubernetes delays retries after failures.
        spec["podFailurePolicy"] = {
            "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
        }
    return _job(request, workers_name(request.name), WORKER, spec)


def _job(request: Request, name: str, component: str, spec: Manifest) -> Manifest:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(request, name, component),
        "spec": {**spec, "template": _pod(request, component)},
    }


def _pod(request: Request, component: str) -> Manifest:
    template = copy.deepcopy(request.template)
    mine = _metadata(request, "", component)
    given = template.get("metadata", {})
    metadata: Manifest = {"labels": {**given.get("labels", {}), **mine["labels"]}}
    annotations = {
        **given.get("annotations", {}),
        **(_STAYS if component == LAUNCHER else {}),
        **request.annotations,
    }
    if annotations:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": _spec(request, component, template.get("spec", {}))}


def _spec(request: Request, component: str, spec: Manifest) -> Manifest:
    own = container_of({"spec": spec})
    others = [each for each in spec.get("containers", []) if each is not own]
    worker = component == WORKER
    volumes, mounts = _volumes(request, worker, {each["mountPath"] for each in own.get("volumeMounts", [])})
    result: Manifest = {
        **spec,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": request.grace,
        "automountServiceAccountToken": spec.get("automountServiceAccountToken", False),
        # Prevent Kubernetes from adding environment variables for all Services in the namespace.
        "enableServiceLinks": False,
        # Omit the template's other containers, such as a proxy, because the launcher's Job would never complete.
        "containers": [_container(request, component, own, mounts), *(others if worker else [])],
    }
    lists = {
        "volumes": volumes,
        "tolerations": list(request.tolerations),
        "imagePullSecrets": [{"name": name} for name in request.pull_secrets],
    }
    for key, more in lists.items():
        if more or spec.get(key):
            result[key] = [*spec.get(key, []), *more]
    if not worker:
        result["hostname"], result["subdomain"] = LAUNCHER_HOST, request.name
    if request.selector:
        result["nodeSelector"] = {**spec.get("nodeSelector", {}), **request.selector}
    if request.account:
        result["serviceAccountName"] = request.account
    if request.priority:
        result["priorityClassName"] = request.priority
    return result


def _volumes(request: Request, worker: bool, used: set[str]) -> tuple[list[Manifest], list[Manifest]]:
    volumes, mounts = [], []
    for number, each in enumerate(request.volumes):
        volumes.append(each.manifest(f"horovod-volume-{number}"))
        mounts.append(each.mount(f"horovod-volume-{number}"))
        used = used | {each.path}
    if worker and SHM_PATH not in used:  # Container runtimes limit /dev/shm to 64 MiB by default.
        memory: Manifest = {"medium": "Memory"}
        volumes.append(
            {"name": "horovod-shm", "emptyDir": {**memory, "sizeLimit": request.shm} if request.shm else memory}
        )
        mounts.append({"name": "horovod-shm", "mountPath": SHM_PATH})
    return volumes, mounts


def _container(request: Request, component: str, template: Manifest, mounts: list[Manifest]) -> Manifest:
    worker = component == WORKER
    variables = _variables(request, component)
    set_here = {each["name"] for each in variables}
    kept = [each for each in template.get("env", []) if each.get("name") not in set_here]
    container: Manifest = {
        **template,
        "name": CONTAINER,
        "image": request.image,
        "command": [literal(word) for word in _command(request, component)],
        "env": [*kept, *variables],
        "resources": _resources(request, template.get("resources", {})) if worker else _LAUNCHER_RESOURCES,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    container.pop("args", None)
    for probe in ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle"):
        if not worker:
            container.pop(probe, None)
    if mounts or template.get("volumeMounts"):
        container["volumeMounts"] = [*template.get("volumeMounts", []), *mounts]
    if not worker:
        container["ports"] = [{"name": "launcher", "containerPort": request.port, "protocol": "TCP"}]
    if request.pull_policy:
        container["imagePullPolicy"] = request.pull_policy
    if request.directory:
        container["workingDir"] = request.directory
    return container


def _command(request: Request, component: str) -> list[str]:
    common = ["--port", str(request.port), "--slots-per-pod", str(request.slots)]
    if component == WORKER:
        start = [
            request.python,
            *boot.arguments_elsewhere("horovod.runner.kubernetes.worker"),
            "--launcher",
            request.name,
            *common,
        ]
        return [*start, "--patience", f"{request.patience:g}", *(["--elastic"] if request.elastic else [])]
    start = [
        request.python,
        *boot.arguments_elsewhere("horovod.runner.kubernetes.launcher"),
        "--of-version",
        __version__,
        *common,
    ]
    return [*start, "--", *request.arguments, "--", *request.command]


def _variables(request: Request, component: str) -> list[Manifest]:
    """Return the environment variables of the container. The ranks inherit the variables of the worker pods."""
    secret = {"secretKeyRef": {"name": request.name, "key": "token"}}
    found: list[Manifest] = [{"name": TOKEN_VARIABLE, "valueFrom": secret}]
    if component == WORKER:
        found += [
            {"name": POD_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": NODE_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": NAMESPACE_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        ]
    else:
        found.append({"name": "PYTHONUNBUFFERED", "value": "1"})
    return found + [{"name": name, "value": literal(value)} for name, value in request.env.items()]


def _resources(request: Request, existing: Manifest) -> Manifest:
    requested = {
        **({"cpu": request.cpu} if request.cpu else {}),
        **({"memory": request.memory} if request.memory else {}),
        **({request.gpu_resource: str(request.gpus)} if request.gpus else {}),
    }
    if not requested:
        return existing
    return {
        **existing,
        "limits": {**existing.get("limits", {}), **requested},
        "requests": {**existing.get("requests", {}), **requested},
    }
