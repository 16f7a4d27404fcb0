"""A real cluster, named by `make test-kubernetes`, and jobs on it.

On the cluster of tools/kubernetes_bed, the tests also reach its nodes' processes, and have administrator rights.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from horovod.runner.kubernetes.api import Api
from horovod.runner.launch import main
from tools.kubernetes_bed.client import Client

CONFIG, IMAGE = os.environ.get("HVD_TEST_KUBECONFIG", ""), os.environ.get("HVD_TEST_IMAGE", "")
NAMESPACE = os.environ.get("HVD_TEST_NAMESPACE") or "default"
BED, NODES = os.environ.get("HVD_TEST_BED", ""), int(os.environ.get("HVD_TEST_NODES") or "0")
CLUSTER = [
    pytest.mark.heavy,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not (CONFIG and IMAGE), reason="no real cluster here (make test-kubernetes)"),
]
ON_BED = [*CLUSTER, pytest.mark.skipif(not BED, reason="no cluster of our own here (make test-kubernetes)")]
SUM = """
import horovod.numpy as hvd, numpy as np
hvd.init()
total = hvd.allreduce(np.array([float(hvd.rank() + 1)]), op=hvd.Sum)
line = f"rank {hvd.rank()} of {hvd.size()} local {hvd.local_rank()} sums {total[0]}"
print(line + chr(10), end="", flush=True)  # in one piece, as where torchrun starts ranks these share a file
"""
FOREVER = SUM + "import time\nwhile True: hvd.barrier(); time.sleep(0.1)"
STEPS = """
import sys, time
import horovod.numpy as hvd

hvd.init()
state = hvd.elastic.ObjectState(step=0)

@hvd.elastic.run
def run(state):
    size = 0
    while True:
        size = int(hvd.allreduce(1, op=hvd.Sum, name="size"))
        state.step += 1
        print("step", state.step, "rank", hvd.rank(), "size", size, "at", time.time(), flush=True)
        if hvd.should_stop() and "stops" in sys.argv:
            print("rank", hvd.rank(), "stops at", state.step, flush=True)
            return
        time.sleep(0.05)
        state.commit()

run(state)
"""


def kubectl_argv(name, *rest, config=CONFIG, namespace=NAMESPACE):
    cluster = ["--kubeconfig", config, "--namespace", namespace]
    return ["kubernetes", *cluster, "--image", IMAGE, "--name", name, "--grace", "5", *rest]


def run(name, *rest, **options):
    return main(kubectl_argv(name, *rest, **options))


def ask(action, name="", config=CONFIG, namespace=NAMESPACE):
    return main(["kubernetes", action, "--kubeconfig", config, "--namespace", namespace, *filter(None, [name])])


def remaining(name, namespace=NAMESPACE):
    """Return the remaining objects of a job, as names of kinds."""
    api = Api(CONFIG, namespace=namespace)
    label = f"app.kubernetes.io/instance={name}"
    return [kind for kind in ("Pod", "Job", "Service", "Secret") if api.list(kind, labelSelector=label)["items"]]


def nothing_left(name, namespace=NAMESPACE, seconds=150):
    """Wait until nothing of a job is left.

    Objects owned by the launcher's Job disappear shortly after it; old kubelets take a minute for pods that never
    started.
    """
    end = time.monotonic() + seconds
    while remaining(name, namespace):
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


def pods(name, component="worker", namespace=NAMESPACE):
    """Return pods by name."""
    label = f"app.kubernetes.io/instance={name},app.kubernetes.io/component={component}"
    found = Api(CONFIG, namespace=namespace).list("Pod", labelSelector=label)["items"]
    return {each["metadata"]["name"]: each for each in found}


def until(holds, seconds=60, what="it has not come to that"):
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return found


class Running:
    """A job that horovodrun follows in another process. `lines`: (time, text) of all its output."""

    def __init__(self, name, *rest, **options):
        self.name, self.lines = name, []
        command = [sys.executable, "-m", "horovod.runner", *kubectl_argv(name, *rest, **options)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append((time.time(), line.rstrip("\n")))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self._reader.join(30)
        self.process.stdout.close()

    @property
    def text(self):
        return "\n".join(text for _, text in list(self.lines))

    def wait(self, seconds=120):
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job goes on:\n{self.text[-4000:]}") from None
        self._reader.join(30)
        return code

    def wait_for(self, argv, seconds=120):
        """Wait until a line contains these texts."""
        until(lambda: argv in self.text or self.process.poll() is not None, seconds, f"{argv!r} in:\n{self.text}")
        assert argv in self.text, self.text

    def steps(self):
        """Return (time, step, rank, size), as the ranks print them."""
        found = []
        for _, text in list(self.lines):
            _, mark, rest = text.partition("<stdout>:step ")
            if mark:
                step, _, rank, _, size, _, at = rest.split()
                found.append((float(at), int(step), int(rank), int(size)))
        return found

    def stepped(self, size, after=0.0, seconds=120):
        """Return the first time after the given one at which so many ranks took a step."""
        return until(
            lambda: min((at for at, _, _, ranks in self.steps() if ranks == size and at > after), default=None),
            seconds,
            f"a step of {size} ranks in:\n{self.text[-4000:]}",
        )


# On the test bed


def admin():
    return Client()


def path(name="", resource="pods", namespace=NAMESPACE, group="/api/v1"):
    return f"{group}/namespaces/{namespace}/{resource}" + (f"/{name}" if name else "")


@contextlib.contextmanager
def namespace_of(name, *objects):
    """Create a namespace with these (resource path, object), removed at the end of the test."""
    client = admin()
    client.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    try:
        until(lambda: "default" in names_in(client, path("", "serviceaccounts", name)))
        for namespace, obj in objects:
            client.request("POST", namespace, obj)
        yield name
    finally:
        client.request("DELETE", f"/api/v1/namespaces/{name}")
        until(lambda: name not in names_in(client, "/api/v1/namespaces"), 60, f"namespace {name} stays")


def names_in(client, namespace):
    return {each["metadata"]["name"] for each in client.request("GET", namespace)["items"]}


def kubectl(*rest, stdin=None, config=None):
    """Return the output of kubectl, called with the server's real address, bypassing any simulated fault."""
    config = config or os.environ["HVD_TEST_SERVER_CONFIG"]
    text = stdin if isinstance(stdin, str) else json.dumps(stdin) if stdin else None
    done = subprocess.run(
        [os.environ["HVD_TEST_KUBECTL"], "--kubeconfig", config, *rest],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr
