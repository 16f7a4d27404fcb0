"""A cluster in this process: an API server with the calls that horovodrun needs, a controller of Jobs, and nodes.

The nodes run each pod as a local process with the command and the environment of its manifest.
"""

import base64
import contextlib
import copy
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from http.server import ThreadingHTTPServer
from pathlib import Path

from tests.runner.kubernetes.fake_api import TOKEN, handler, now, status

KINDS = {"jobs": "Job", "secrets": "Secret", "services": "Service", "pods": "Pod", "events": "Event"}
INDEX = "batch.kubernetes.io/job-completion-index"


class Cluster:
    """A context manager that ends all processes on exit.

    `place(pod)`: returns a status to give a pod instead of running it, or None. `denied`: pairs (verb, resource)
    that the user may not use.
    """

    def __init__(self, namespace="default", runs=True):
        self.namespace = namespace
        self.place = lambda pod: None
        self.denied = set()
        self.address = "127.0.0.1"  # of the launcher's pod
        self.quota = False  # if set, pods of ranks cannot be created
        self.requests = []  # (verb, resource, name, query)
        self.objects = {kind: {} for kind in KINDS}
        self.history = []  # (version, resource, type, object)
        self.changed = threading.Condition()
        self.version = 100
        self.runs = runs
        self.processes = {}
        self.folder = tempfile.TemporaryDirectory(prefix="kubernetes-")
        self.over = False
        self.answering = lambda verb, resource: None  # called when a request is done but not answered yet
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler(self))
        self.server.daemon_threads = True
        self.threads = [threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        with self.changed:
            self.over = True
            self.changed.notify_all()
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
        self.server.shutdown()
        self.server.server_close()
        for thread in self.threads:
            thread.join(60)
        self.folder.cleanup()

    @property
    def kubeconfig(self):
        path = Path(self.folder.name, "config")
        if not path.exists():
            user = {"name": "u", "user": {"token": TOKEN}}
            server = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.server.server_port}"}}
            context = {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": self.namespace}}
            config = {"apiVersion": "v1", "kind": "Config", "current-context": "here"}
            path.write_text(json.dumps({**config, "users": [user], "clusters": [server], "contexts": [context]}))
        return str(path)

    # Objects

    def put(self, resource, obj, kind="MODIFIED"):
        with self.changed:
            self.version += 1
            obj["metadata"]["resourceVersion"] = str(self.version)
            self.objects[resource][obj["metadata"]["name"]] = obj
            self.history.append((self.version, resource, kind, copy.deepcopy(obj)))
            self.changed.notify_all()

    def create(self, resource, obj):
        name = obj["metadata"]["name"]
        with self.changed:
            if name in self.objects[resource]:
                return status(409, "AlreadyExists", f'{resource}.batch "{name}" already exists')
            obj["metadata"].update(uid=str(uuid.uuid4()), namespace=self.namespace)
            self.put(resource, obj, "ADDED")
            if resource == "jobs":
                self.control(obj)
        return 201, obj

    def delete(self, resource, name):
        with self.changed:
            obj = self.objects[resource].get(name)
            if obj is None:
                return status(404, "NotFound", f'{resource} "{name}" not found')
            if resource == "pods":
                self.end_pod(obj)
                return 200, obj
            self.remove(resource, obj)
        return 200, {"kind": "Status", "status": "Success"}

    def remove(self, resource, obj):
        with self.changed:
            self.version += 1
            del self.objects[resource][obj["metadata"]["name"]]
            self.history.append((self.version, resource, "DELETED", obj))
            self.changed.notify_all()
            for other, objects in self.objects.items():
                for each in list(objects.values()):
                    owners = each["metadata"].get("ownerReferences", [])
                    if any(owner["uid"] == obj["metadata"]["uid"] for owner in owners):
                        self.delete(other, each["metadata"]["name"])

    # Jobs

    def control(self, job):
        """Act as the Job controller when a Job or one of its pods has changed."""
        spec, state = job["spec"], job.setdefault("status", {})
        name = job["metadata"]["name"]
        if spec.get("suspend") or "conditions" in state or name not in self.objects["jobs"]:
            return
        state.setdefault("startTime", now())
        indexed = spec.get("completionMode") == "Indexed"
        pods = self.of_job(name)
        status = {
            phase: [each for each in pods if each["status"]["phase"] == phase] for phase in ("Succeeded", "Failed")
        }
        if len(status["Failed"]) > spec.get("backoffLimit", 6):
            state["conditions"] = [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]
            self.put("jobs", job)
            for each in pods:
                if each["status"]["phase"] not in status:
                    self.end_pod(each)
            return
        if len(status["Succeeded"]) >= spec["completions"]:
            state["conditions"] = [{"type": "Complete", "status": "True"}]
            self.put("jobs", job)
            if spec.get("ttlSecondsAfterFinished") == 0:
                self.remove("jobs", job)
            return
        here = {each["metadata"]["annotations"].get(INDEX) for each in pods if each["status"]["phase"] != "Failed"}
        for number in range(spec["completions"]):
            if (str(number) if indexed else None) not in here:
                if self.quota and indexed:
                    self.report_quota(name)
                    return
                self.make_pod(job, number if indexed else None)
        state["active"] = spec["parallelism"]
        if any(each["status"]["phase"] == "Failed" and each not in status["Failed"] for each in self.of_job(name)):
            self.control(job)

    def of_job(self, name):
        return [each for each in self.objects["pods"].values() if owner_of(each) == name]

    def report_quota(self, name):
        text = f'Error creating: pods "{name}-0" is forbidden: exceeded quota: few, requested: pods=1, limited: pods=1'
        involved = {"kind": "Job", "name": name}
        event = {"metadata": {"name": "e"}, "reason": "FailedCreate", "involvedObject": involved, "message": text}
        self.put("events", event, "ADDED")

    def make_pod(self, job, number):
        template, name = copy.deepcopy(job["spec"]["template"]), job["metadata"]["name"]
        pod = {"metadata": template["metadata"], "spec": template["spec"], "status": {"phase": "Pending"}}
        index = "" if number is None else f"-{number}"
        annotations = pod["metadata"].setdefault("annotations", {})
        if number is not None:
            annotations[INDEX] = str(number)
        pod["metadata"]["ownerReferences"] = [{"kind": "Job", "name": name, "uid": job["metadata"]["uid"]}]
        pod["metadata"]["name"] = f"{name}{index}-{uuid.uuid4().hex[:5]}"
        self.create("pods", pod)
        node = self.place(pod)
        if node is not None:
            pod["status"] = node
            self.put("pods", pod)
        elif self.runs:
            self.start(pod)

    # Nodes

    def start(self, pod):
        container, name = pod["spec"]["containers"][0], pod["metadata"]["name"]
        pod["spec"]["nodeName"] = "node-a"
        environ = {key: os.environ[key] for key in ("PATH", "HOME", "HOROVOD_REPORT_DIR") if key in os.environ}
        for each in container["env"]:
            environ[each["name"]] = self.value(each, pod).replace("$$", "$")
        if INDEX in pod["metadata"]["annotations"]:
            environ["JOB_COMPLETION_INDEX"] = pod["metadata"]["annotations"][INDEX]
        argv = [argument.replace("$$", "$") for argument in container["command"]]  # commands here never use $(NAME)
        command = [sys.executable if argument == "python" else argument for argument in argv]
        if "--launcher" in command:  # the answer of the cluster's DNS for the service
            command[command.index("--launcher") + 1] = self.address
        with open(self.log_of(name), "wb") as log:
            process = self.spawn(pod, command, environ, log)
        self.processes[name] = process
        pod["status"] = {"phase": "Running", "containerStatuses": [{"name": "horovod", "state": {"running": {}}}]}
        self.put("pods", pod)
        thread = threading.Thread(target=self.reap, args=(pod, process))
        self.threads.append(thread)
        thread.start()

    def spawn(self, pod, command, environ, log):
        """Start the pod's first process."""
        return subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )

    def send(self, process, number):
        process.send_signal(number)

    def value(self, each, pod):
        if "value" in each:
            return each["value"]
        source = each["valueFrom"]
        if "secretKeyRef" in source:
            data = self.objects["secrets"][source["secretKeyRef"]["name"]]["data"]
            return base64.b64decode(data[source["secretKeyRef"]["key"]]).decode()
        known = {
            "metadata.name": pod["metadata"]["name"],
            "metadata.namespace": self.namespace,
            "spec.nodeName": "node-a",
        }
        return known[source["fieldRef"]["fieldPath"]]

    def log_of(self, name):
        return str(Path(self.folder.name, f"{name}.log"))

    def reap(self, pod, process):
        code = process.wait()
        code = code if code >= 0 else 128 - code
        with self.changed:
            if self.over:
                return
            status = {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}
            pod["status"] = {
                "phase": "Succeeded" if code == 0 else "Failed",
                "containerStatuses": [{"name": "horovod", "state": {"terminated": status}}],
            }
            if "deletionTimestamp" in pod["metadata"]:
                self.remove("pods", pod)
            else:
                self.put("pods", pod)
            job = self.objects["jobs"].get(owner_of(pod))
            if job is not None:
                self.control(job)

    def end_pod(self, pod):
        """End a pod as a kubelet does: SIGTERM, a grace period, SIGKILL."""
        process = self.processes.get(pod["metadata"]["name"])
        if process is None or process.poll() is not None:
            self.remove("pods", pod)
            return
        if "deletionTimestamp" in pod["metadata"]:
            return
        pod["metadata"]["deletionTimestamp"] = now()
        self.put("pods", pod)
        self.send(process, signal.SIGTERM)

        def kill():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(pod["spec"].get("terminationGracePeriodSeconds", 30))
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

        self.threads.append(threading.Thread(target=kill))
        self.threads[-1].start()

    def pods(self, component="worker"):
        return [
            each
            for each in list(self.objects["pods"].values())
            if each["metadata"]["labels"].get("app.kubernetes.io/component") == component
        ]


def owner_of(pod):
    return pod["metadata"]["ownerReferences"][0]["name"]
