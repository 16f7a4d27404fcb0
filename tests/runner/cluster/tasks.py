"""Local processes in place of those that a cluster manager would start."""

import base64
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time

_CODE = """
import base64, pickle, sys
from horovod.runner.cluster import become_agent
ticket, number, options = pickle.loads(base64.b64decode(sys.stdin.readline()))
become_agent(ticket, number, **options)
"""


class Tasks:
    """A context manager that ends all tasks on exit."""

    def __init__(self):
        self.started = {}

    def start(self, ticket, number, *, before="", **options):
        """Start a task. `before`: a statement that it runs first."""
        task = subprocess.Popen(
            [sys.executable, "-c", before + "\n" + _CODE],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        task.stdin.write(base64.b64encode(pickle.dumps((ticket, number, options))).decode() + "\n")
        task.stdin.close()
        self.started[number] = task
        return task

    def kill(self, number):
        """Kill only the process itself, as a cluster manager does after its grace period."""
        os.kill(self.started[number].pid, signal.SIGKILL)

    def end(self, seconds=20):
        """Return (exit code, stderr) of each task, by number; they must end by themselves."""
        reports = {}
        for number, task in self.started.items():
            task.wait(seconds)
            reports[number] = task.returncode, task.stderr.read()
        return reports

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for task in self.started.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(task.pid, signal.SIGKILL)
            task.wait(60)
            task.stderr.close()


def has_exited(pid, seconds=10):
    """Return True if the process ends within the given time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return True
        except OSError:
            return True
        time.sleep(0.05)
    return False
