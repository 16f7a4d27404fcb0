"""Controller that creates and deletes the pods of Jobs, as decided by the module `jobs`."""

import copy
import queue
import threading
import time
import uuid
from datetime import datetime, timezone
from typing import Any

from tools.kubernetes_bed import jobs
from tools.kubernetes_bed.client import Client, Refused

JOBS, PODS = "/apis/batch/v1/jobs", "/api/v1/pods"
AGAIN = 1.0
# Seconds to wait before retrying the creation of a pod.
REFUSED_AGAIN = 5.0
TO_INDEX = {"fieldRef": {"fieldPath": f"metadata.annotations['{jobs.INDEX}']"}}


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod_of(job: dict[str, Any], number: int | None) -> dict[str, Any]:
    """Return a new pod for a Job, as JSON for the API. `number` is the pod's index in an Indexed Job."""
    template, name = copy.deepcopy(job["spec"]["template"]), job["metadata"]["name"]
    metadata = template.setdefault("metadata", {})
    metadata["generateName"] = f"{name}-" if number is None else f"{name}-{number}-"
    metadata["finalizers"] = [jobs.FINALIZER]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"]}
    metadata["ownerReferences"] = [{**owner, "controller": True, "blockOwnerDeletion": True}]
    if number is not None:
        metadata.setdefault("annotations", {})[jobs.INDEX] = str(number)
        template["spec"].setdefault("hostname", f"{name}-{number}")
        for container in [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]:
            variable = {"name": "JOB_COMPLETION_INDEX", "valueFrom": TO_INDEX}
            container["env"] = [*container.get("env", []), variable]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


class Controller:
    """Controller that creates and deletes the pods of all Jobs in the cluster."""

    def __init__(self) -> None:
        self._news: queue.Queue[tuple[str, str, dict[str, Any]]] = queue.Queue()
        self._client = Client()
        self._jobs: dict[str, dict[str, Any]] = {}
        self._pods: dict[str, dict[str, Any]] = {}
        self._records: dict[str, jobs.Record] = {}
        self._wakes: dict[str, float] = {}

    def run(self) -> None:
        """Watch Jobs and act on changes until the process exits."""
        for path in (JOBS, PODS):
            threading.Thread(target=self._follow, args=(path,), daemon=True).start()
        while True:
            for uid in self._take():
                try:
                    self._reconcile(uid)
                except (Refused, OSError) as error:
                    if not (isinstance(error, Refused) and error.status in (404, 409)):
                        print(f"jobs: {type(error).__name__}: {error}", flush=True)
                    self._wakes[uid] = time.monotonic() + 0.2

    def _follow(self, path: str) -> None:
        client = Client()
        while True:
            try:
                for event, obj in client.follow(path):
                    if event:
                        self._news.put((path, event, obj))
            except (Refused, OSError) as error:
                print(f"jobs: {error}", flush=True)
                time.sleep(AGAIN)

    def _take(self) -> set[str]:
        """Wait for events or the next deadline. Return the uids of the Jobs to update."""
        soonest = min(self._wakes.values(), default=None)
        try:
            news = [self._news.get(timeout=None if soonest is None else max(0.0, soonest - time.monotonic()))]
        except queue.Empty:
            news = []
        while not self._news.empty():
            news.append(self._news.get())
        found = {self._learn(*each) for each in news}
        due = {uid for uid, at in self._wakes.items() if at <= time.monotonic()}
        for uid in due:
            del self._wakes[uid]
        return (found | due) - {""}

    def _learn(self, path: str, event: str, obj: dict[str, Any]) -> str:
        known = self._jobs if path == JOBS else self._pods
        uid = obj["metadata"]["uid"]
        if event == "DELETED":
            known.pop(uid, None)
        elif int(known.get(uid, obj)["metadata"]["resourceVersion"]) <= int(obj["metadata"]["resourceVersion"]):
            # Keep a newer version of the object, which this controller may have created since the event.
            known[uid] = obj
        if path == JOBS:
            return str(uid)
        owners = obj["metadata"].get("ownerReferences", [])
        return next((str(each["uid"]) for each in owners if each.get("controller") and each["kind"] == "Job"), "")

    def _pods_of(self, uid: str) -> list[dict[str, Any]]:
        return [
            pod
            for pod in self._pods.values()
            if any(each["uid"] == uid for each in pod["metadata"].get("ownerReferences", []))
        ]

    def _reconcile(self, uid: str) -> None:
        job, pods = self._jobs.get(uid), self._pods_of(uid)
        if job is None or "deletionTimestamp" in job["metadata"]:
            # Remove the finalizers of pods whose Job is deleted, because no Job will count these pods.
            for pod in pods:
                if jobs.FINALIZER in pod["metadata"].get("finalizers", ()):
                    self._release(pod)
            return
        record = self._records.setdefault(uid, jobs.Record())
        plan = jobs.decide(job, pods, record, time.monotonic())
        if plan.wake is not None:
            self._wakes[uid] = time.monotonic() + plan.wake
        for number in plan.create:
            if not self._create(job, number):
                self._wakes[uid] = time.monotonic() + REFUSED_AGAIN
                break
            plan.active += 1
        for pod in plan.delete:
            self._client.request("DELETE", _path(pod))
        self._tell(job, record, plan)
        for pod in plan.release:
            self._release(pod)

    def _create(self, job: dict[str, Any], number: int | None) -> bool:
        namespace = job["metadata"]["namespace"]
        try:
            pod = self._client.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod_of(job, number))
        except Refused as error:
            self._event(job, "FailedCreate", f"Error creating: {error}")
            return False
        self._pods.setdefault(pod["metadata"]["uid"], pod)
        return True

    def _release(self, pod: dict[str, Any]) -> None:
        rest = [each for each in pod["metadata"]["finalizers"] if each != jobs.FINALIZER]
        try:
            after = self._client.patch(_path(pod), {"metadata": {"finalizers": rest}})
        except Refused as error:
            if error.status != 404:
                raise
            self._pods.pop(pod["metadata"]["uid"], None)
            return
        if pod["metadata"]["uid"] in self._pods:
            self._pods[pod["metadata"]["uid"]] = after

    def _tell(self, job: dict[str, Any], record: jobs.Record, plan: jobs.Plan) -> None:
        before = job.get("status", {})
        status: dict[str, Any] = {"active": plan.active, "succeeded": len(record.done), "failed": record.failed}
        status = {name: value for name, value in status.items() if value != before.get(name, 0)}
        if "startTime" not in before and (plan.active or plan.condition):
            status["startTime"] = now()
        conditions = before.get("conditions") or []
        if plan.condition and plan.condition[0] not in {each["type"] for each in conditions}:
            kind, reason, message = plan.condition
            condition = {"type": kind, "status": "True", "reason": reason, "message": message}
            status["conditions"] = [*conditions, {**condition, "lastTransitionTime": now(), "lastProbeTime": now()}]
            if kind == "Complete":
                status["completionTime"] = now()
        if status:
            after = self._client.patch(f"{_path(job)}/status", {"status": status})
            if job["metadata"]["uid"] in self._jobs:
                self._jobs[job["metadata"]["uid"]] = after

    def _event(self, job: dict[str, Any], reason: str, message: str) -> None:
        metadata = job["metadata"]
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{metadata['name']}.{uuid.uuid4().hex[:12]}", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "uid": metadata["uid"],
                "name": metadata["name"],
                "namespace": metadata["namespace"],
            },
            "reason": reason,
            "message": message,
            "type": "Warning",
            "count": 1,
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "source": {"component": "job-controller"},
        }
        self._client.request("POST", f"/api/v1/namespaces/{metadata['namespace']}/events", event)


def _path(obj: dict[str, Any]) -> str:
    metadata = obj["metadata"]
    kind = "/apis/batch/v1" if "template" in obj["spec"] else "/api/v1"
    resource = "jobs" if "template" in obj["spec"] else "pods"
    return f"{kind}/namespaces/{metadata['namespace']}/{resource}/{metadata['name']}"
