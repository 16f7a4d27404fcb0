"""Helpers that kill executors of the tests' application, or wait for processes on them."""

import os
import signal
import time
from pathlib import Path


def parents(pid):
    """Return the ancestors' process ids, nearest first."""
    found = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        found.append(pid)
    return found


def executor_of(pid):
    """Return the pid of the executor's JVM on which this rank's process runs."""
    for one in parents(pid):
        if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{one}/cmdline").read_bytes():
            return one
    raise AssertionError(f"process {pid} runs on no executor")


def kill_executor_of(pid):
    """Kill the executor of a rank; return the time (seconds since 1970)."""
    os.kill(executor_of(pid), signal.SIGKILL)
    return time.time()


def wait_for(there, seconds=60):
    """Wait until the condition returns a true value; return that value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := there():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not come about")
