"""What is done to executors of the tests' application, and to what runs on them."""

import os
import signal
import time
from pathlib import Path


def parents(pid):
    """Its ancestors' process ids, the nearest first."""
    found = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        found.append(pid)
    return found


def executor_of(pid):
    """The JVM of the executor on which this process of a rank runs."""
    for one in parents(pid):
        if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{one}/cmdline").read_bytes():
            return one
    raise AssertionError(f"process {pid} runs on no executor")


def kill_executor_of(pid):
    """Returns the time (s since 1970)."""
    os.kill(executor_of(pid), signal.SIGKILL)
    return time.time()


def wait_for(there, seconds=60):
    """Until it is true, or something; returns that."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := there():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not come about")
