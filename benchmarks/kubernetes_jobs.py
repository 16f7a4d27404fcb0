"""Measure how soon a job on Kubernetes does its first allreduce, and how soon it continues after a pod was killed.

    python -m tools.kubernetes_bed python benchmarks/kubernetes_jobs.py [--pods 4] [--rounds 5]

It needs the cluster of tools/kubernetes_bed, on which it can see the pods' processes. Times are medians (minimum to
maximum) in seconds of the boot-time clock, which all containers share:

    bare       from creating an Indexed Job of as many pods, whose programs only import NumPy, until all have done so
    job        from calling horovodrun until all ranks have done their first allreduce
    running    from the start of the first process of the last pod until then
    killed     from killing all processes of a pod of an elastic job until the others have done their next step
"""

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from horovod.runner.kubernetes.api import Api
from horovod.runner.kubernetes.manifests import Manifest

DEADLINE = 300.0
NOW = "__import__('time').clock_gettime(7)"  # CLOCK_BOOTTIME
BORN = "int(open('/proc/1/stat').read().rpartition(')')[2].split()[19]) / os.sysconf('SC_CLK_TCK')"
BARE = f"import numpy, os; print('done', {NOW}, {BORN}, flush=True)"
FIRST = f"""
import os, numpy as np
import horovod.numpy as hvd
hvd.init()
hvd.allreduce(np.ones(1, np.float32), op=hvd.Sum)
print('done', {NOW}, {BORN}, flush=True)
"""
STEPS = f"""
import horovod.numpy as hvd
hvd.init()
state = hvd.elastic.ObjectState(step=0)

@hvd.elastic.run
def run(state):
    while True:
        size = int(hvd.allreduce(1, op=hvd.Sum, name="size"))
        print('done', {NOW}, size, flush=True)
        __import__('time').sleep(0.05)
        state.commit()

run(state)
"""


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def told(text: str) -> list[tuple[float, float]]:
    """Return the numbers in the lines with `done` of a job's output."""
    found = [line.partition("done ")[2].split() for line in text.splitlines() if "done " in line]
    return [(float(first), float(second)) for first, second in found]


def until(what: str, holds: Callable[[], Any]) -> Any:
    """Wait until `holds()` returns a true value, and return the value or raise TimeoutError."""
    end = time.monotonic() + DEADLINE
    while not (found := holds()):
        if time.monotonic() > end:
            raise TimeoutError(f"waited {DEADLINE:g} s for {what}")
        time.sleep(0.02)
    return found


def bare_job(name: str, image: str, pods: int) -> Manifest:
    """Return the manifest of a Job without horovodrun."""
    container = {"name": "bare", "image": image, "command": ["python", "-c", BARE]}
    labels = {"bare": name}
    pod = {"restartPolicy": "Never", "automountServiceAccountToken": False, "containers": [container]}
    spec = {"completionMode": "Indexed", "completions": pods, "parallelism": pods, "backoffLimit": 0}
    template = {"metadata": {"labels": labels}, "spec": pod}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {**spec, "template": template},
    }


def bare(api: Api, image: str, pods: int) -> float:
    name = f"bare-{uuid.uuid4().hex[:6]}"
    began = now()
    api.create(bare_job(name, image, pods))

    def over() -> list[str]:
        found = api.list("Pod", labelSelector=f"bare={name}")["items"]
        names = [each["metadata"]["name"] for each in found if each["status"]["phase"] == "Succeeded"]
        return names if len(names) == pods else []

    names = until("the bare pods", over)
    times = [told(b"\n".join(api.log(each, "bare")).decode())[0][0] for each in names]
    api.delete("Job", name)
    until("their end", lambda: not api.list("Pod", labelSelector=f"bare={name}")["items"])
    return max(times) - began


def horovodrun(name: str, image: str, pods: int, program: str, *more: str) -> list[str]:
    words = ["kubernetes", "-np", str(pods), "--image", image, "--name", name, "--grace", "2", *more]
    return [sys.executable, "-m", "horovod.runner", *words, "--", "python", "-c", program]


def job(image: str, pods: int) -> tuple[float, float]:
    """Run a job, and return the seconds to its first allreduce from the call and from the last pod's start."""
    began = now()
    command = horovodrun(f"job-{uuid.uuid4().hex[:6]}", image, pods, FIRST)
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=True)
    times = told(done.stdout)
    if len(times) != pods:
        raise RuntimeError(f"{len(times)} of {pods} ranks have told their times:\n{done.stdout}{done.stderr}")
    end = max(at for at, _ in times)
    return end - began, end - max(born for _, born in times)


def processes_of(name: str) -> Iterator[tuple[str, int]]:
    """Yield the pod and the process id of each process in a job's rank pods."""
    for number in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{number}/environ", "rb") as file:
            for each in file.read().split(b"\0"):
                if each.startswith(f"HOROVOD_POD_NAME={name}-".encode()):
                    yield each.decode(), int(number)


def killed(image: str, pods: int) -> float:
    name = f"kill-{uuid.uuid4().hex[:6]}"
    command = horovodrun(name, image, pods, STEPS, "--min-np", "1", "--max-np", str(pods))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            at, size = 0.0, 0.0
            while size < pods:
                ((at, size),) = told(process.stdout.readline()) or [(0.0, 0.0)]
            time.sleep(1)
            victim = max(pod for pod, _ in processes_of(name))
            began = now()
            for pod, number in list(processes_of(name)):
                if pod == victim:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(number, signal.SIGKILL)
            while at < began or size != pods - 1:
                ((at, size),) = told(process.stdout.readline()) or [(0.0, 0.0)]
            return at - began
        finally:
            process.terminate()
            for _ in process.stdout:
                pass


def row(what: str, seconds: list[float]) -> str:
    return f"| {what} | {statistics.median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f}) |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    config, image = os.environ.get("KUBECONFIG", ""), os.environ.get("HVD_TEST_IMAGE", "")
    if not (config and image):
        parser.error("KUBECONFIG and HVD_TEST_IMAGE are missing: run it by python -m tools.kubernetes_bed")
    api, load = Api(config), os.getloadavg()[0]
    found: dict[str, list[float]] = {"bare": [], "job": [], "beyond": [], "running": [], "killed": []}
    # Alternate the variants, so that a change in the machine's speed affects all of them.
    for _ in range(given.rounds):
        found["bare"].append(bare(api, image, given.pods))
        whole, running = job(image, given.pods)
        found["job"].append(whole)
        found["beyond"].append(whole - found["bare"][-1])
        found["running"].append(running)
        found["killed"].append(killed(image, given.pods))
        print({what: round(each[-1], 2) for what, each in found.items()}, f"load {os.getloadavg()[0]:.1f}", flush=True)
    print(
        f"\n{given.pods} pods, {given.rounds} rounds, load {load:.1f} to {os.getloadavg()[0]:.1f}\n\n| | s |\n|---|---|"
    )
    for what, seconds in found.items():
        print(row(what, seconds))


if __name__ == "__main__":
    main()
