"""After SIGKILL of any process, no process of the job is left."""

import os
import signal
import time

import pytest

from tests.runner.launching import eventually, python, run_job, running

# A difficult worker: a shell with a child, and a daemon in a separate session.
DAEMON = "import os, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); time.sleep(63)"


@pytest.fixture
def stubborn(tmp_path):
    file = tmp_path / "daemon.py"
    file.write_text(DAEMON)
    return ["bash", "-c", f"{python('')[0]} {file}; sleep 62 & echo ready; wait"]


def ready(job, count):
    for _ in range(count):
        assert job.process.stdout.readline().endswith(b"ready\n")
    # launcher, guard, agent; per worker the shell, its child and the daemon
    eventually(lambda: len(job.left()) == 3 + 3 * count, 60, f"processes: {job.commands()}")


@pytest.mark.parametrize("victim", ["launcher", pytest.param("guard", marks=pytest.mark.heavy), "agent"])
def test_kill_9_leaves_nothing(stubborn, victim):
    with running(["-np", "2", *stubborn]) as job:
        ready(job, 2)
        guard, agent = job.agents()
        os.kill({"launcher": job.process.pid, "guard": guard, "agent": agent}[victim], signal.SIGKILL)
        eventually(lambda: job.left() == [], 40, f"{job.commands()}")
        if victim != "launcher":
            done = job.finish()
            assert done.code != 0
            message = {"guard": "ends the job: it received SIGTERM", "agent": "is lost: its agent ended"}[victim]
            assert f"host localhost (ranks 0-1) {message}" in done.err


def test_kill_9_of_a_worker_ends_its_tree_and_the_others(stubborn):
    with running(["-np", "2", *stubborn]) as job:
        ready(job, 2)
        shells = [pid for pid, line in job.commands().items() if line.startswith("bash")]
        os.kill(shells[0], signal.SIGKILL)
        done = job.finish()
        assert done.code == 137
        assert "killed by signal 9 (SIGKILL)" in done.err
        assert job.left() == []


def test_processes_left_by_workers_end_with_the_job(stubborn):
    start = time.monotonic()
    done = run_job(["-np", "2", *stubborn[:2], stubborn[2].replace("wait", "true")])
    assert done.code == 0
    assert time.monotonic() - start < 40


def test_workers_share_a_session_and_get_no_descriptor_of_the_launcher():
    code = (
        "import os; print(os.getpgrp() == os.getpid(), os.getsid(0) == os.getsid(os.getppid()), "
        "*[os.path.realpath(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if int(n) > 2])"
    )
    lines = run_job(["-np", "2", *python(code)]).out.splitlines()
    assert all("True True" in line and "horovod-key" in line for line in lines), lines
    assert len(lines) == 2
    assert not any(kind in line for line in lines for kind in ("pipe:", "socket:")), lines
