"""Processes run by another launcher: signals and output during and after its run."""

import os
import time

from horovod.runner.external_launchers import foreign_job
from horovod.runner.job.policy import Policy
from horovod.runner.job.watch import Watch
from horovod.runner.output.display import Screen
from horovod.runner.plan.hosts import Host, assign
from horovod.runner.plan.settings import LaunchSettings

SETTINGS = LaunchSettings(command=["true"], slots=assign([Host("localhost", 1)], 1))


def test_a_process_that_has_ended_gets_no_signal(monkeypatch):
    """Its pid may belong to another process by then."""
    watch = Watch(Screen(SETTINGS, None), Policy(time.monotonic(), None), None, 1)
    attempt = foreign_job.ForeignAttempt(["true"], dict(os.environ), SETTINGS, watch)
    try:
        os.waitid(os.P_PID, attempt._process.pid, os.WEXITED | os.WNOWAIT)
        sent = []
        monkeypatch.setattr(foreign_job.linux, "send_signal", lambda *given: sent.append(given))
        attempt.stop(0.001)
        time.sleep(0.01)
        attempt.tick(time.monotonic(), listening=True)
        assert sent == []
    finally:
        attempt.close()
