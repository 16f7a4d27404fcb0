"""Stopped workers (SIGSTOP) keep their connections, and are detected by their silence."""

import os
import time

import pytest

pytest.importorskip("ray")

from horovod.ray import RayExecutor
from horovod.runner.function.outcome import WorkerError
from tests.ray import functions
from tests.runner.cluster.tasks import has_exited

STILL = "no message from it for 4 s; it is stopped"


def test_the_job_ends_and_names_it(local, monkeypatch):
    monkeypatch.setenv("HOROVOD_HEARTBEAT_TIMEOUT", "4")
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=300), num_workers=2)
    executor.start()
    try:
        pids = executor.run(os.getpid)
        start = time.monotonic()
        with pytest.raises(WorkerError, match=rf"rank 1 on host [^ ]+: {STILL}, its machine is down") as caught:
            executor.run(functions.stops, args=[1])
        assert 3.9 < time.monotonic() - start < 40
        assert caught.value.rank == 1
        with pytest.raises(RuntimeError, match=rf"rank 1 .* is lost \({STILL}"):
            executor.run(functions.ranks)
    finally:
        executor.shutdown()
    assert all(has_exited(pid, 20) for pid in pids), "also the stopped one"
