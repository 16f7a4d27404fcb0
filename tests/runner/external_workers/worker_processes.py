"""Local processes in place of those that a cluster manager would start; each executes requests, one per line."""

import base64
import contextlib
import pickle
import subprocess
import sys

CODE = """
import base64, pickle, sys, traceback
import cloudpickle
for line in sys.stdin:
    try:
        result = True, pickle.loads(base64.b64decode(line))()
    except BaseException as error:
        result = False, f"{type(error).__name__}: {error}"
    print(base64.b64encode(cloudpickle.dumps(result)).decode(), flush=True)
"""


class WorkerProcesses:
    """A context manager that ends all processes on exit."""

    def __init__(self):
        self.processes = []

    def add(self):
        """Start one more process."""
        process = subprocess.Popen(
            [sys.executable, "-c", CODE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    @staticmethod
    def send(process, call):
        """Call a function in the process; `hear` returns the result."""
        import cloudpickle

        process.stdin.write(base64.b64encode(cloudpickle.dumps(call)).decode() + "\n")
        process.stdin.flush()

    @staticmethod
    def receive(process):
        """Return (True if it returned, its result or the exception's text)."""
        return pickle.loads(base64.b64decode(process.stdout.readline()))

    def ask(self, process, call):
        """Call a function in the process and return its result."""
        self.send(process, call)
        good, value = self.receive(process)
        assert good, value
        return value

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait(60)
            for stream in (process.stdin, process.stdout, process.stderr):
                with contextlib.suppress(OSError):
                    stream.close()
