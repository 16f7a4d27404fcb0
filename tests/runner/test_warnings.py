"""The launcher's reaction to the signal by which batch systems announce the end."""

import signal
import time

import pytest

from tests.runner.launching import LIMIT, python, running

PROGRAM = """
import os, signal, sys, time
if os.environ["HOROVOD_RANK"] == "1":
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit("warned"))
print("ready", flush=True)
deadline = time.monotonic() + 300
while time.monotonic() < deadline:
    time.sleep(0.02)
"""


@pytest.mark.heavy
def test_ranks_that_handle_sigterm_receive_it_and_survive():
    with running(["-np", "2", *python(PROGRAM)]) as job:
        ready = 0
        while ready < 2:
            ready += job.process.stdout.readline().count(b"ready")
        job.process.send_signal(signal.SIGUSR1)
        since = time.monotonic()
        done = job.finish()
    assert time.monotonic() - since < LIMIT
    assert "SIGUSR1 received: passed on to the ranks (hvd.should_stop())" in done.err
    assert "[1]<stderr>:warned" in done.err
    # The other rank did not fail by the signal: it was ended because a rank had failed.
    assert done.code == 1
    assert "SIGUSR1" not in done.err.replace("SIGUSR1 received", "")
