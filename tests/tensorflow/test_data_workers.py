"""Both sides of a data service as jobs of their own, and a data worker that is killed."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("tensorflow")

from tests.documents import ROOT
from tests.runner.elastic.launched import elastic_job

QUIET = {"HOROVOD_GLOO_IFACE": "lo", "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONUNBUFFERED": "1"}
EXAMPLE = ROOT / "examples/tensorflow/data_service.py"
COMPUTE = ("-m", "horovod.tensorflow.data.compute_worker")


def job(ranks, *words):
    words = [sys.executable, "-m", "horovod.runner", "-np", str(ranks), sys.executable, *words]
    environ = {**os.environ, **QUIET, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)


def workers(config):
    """Pids of its data workers."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().decode().split("\0")
        except OSError:
            continue
        if config in words and any("horovod.tensorflow.data.data_worker" in word for word in words):
            found.append(int(pid))
    return found


def killed_worker(config, training):
    """Kills one while the training is under way."""
    for line in training.stdout:
        if "epoch 0" in line:
            victim = workers(config)[-1]
            os.kill(victim, signal.SIGKILL)
            return victim
    raise AssertionError(training.communicate()[1])


@pytest.mark.heavy
def test_two_jobs_and_a_data_worker_that_is_killed(tmp_path):
    config = str(tmp_path / "compute.json")
    compute = job(2, *COMPUTE, config)
    training = job(2, str(EXAMPLE), config, "--epochs", "6", "--effort", "20")
    try:
        victim = killed_worker(config, training)
        out, err = training.communicate(timeout=300)
        assert training.returncode == 0, err
        assert "epoch 5" in out
        _, said = compute.communicate(timeout=120)
        assert compute.returncode == 0, said
        assert f"(pid {victim}) was ended by signal 9" in said
    finally:
        for one in (training, compute):
            one.terminate()
            one.communicate()
    until = time.monotonic() + 60
    while workers(config) and time.monotonic() < until:
        time.sleep(0.1)
    assert workers(config) == []
    assert os.listdir(tmp_path) == []


@pytest.mark.heavy
def test_an_elastic_training_loses_a_rank_and_gets_another(tmp_path):
    config = str(tmp_path / "compute.json")
    compute = job(2, *COMPUTE, config)
    flags = ("-np", "2", "--min-np", "1", "--max-np", "2", "--blacklist-cooldown-range", "1", "1")
    command = (*flags, sys.executable, str(ROOT / "tests/tensorflow/elastic_data.py"), config)
    try:
        with elastic_job(tmp_path, "localhost:2", *command, environment=QUIET) as training:

            def passes(size):
                return sum(f" by {size} ranks" in line for line in training.out)

            training.until(lambda: passes(2) > 1, 120)
            training.kill("rank 1")
            training.until_said("rank 1 on host localhost failed: killed by signal 9 .*; 1 rank left$")
            before = passes(2)
            training.until(lambda: passes(2) > before, 120)
            training.kill("rank 0", signal.SIGUSR1)
            assert training.end(120) == 0, training.shown()
        _, said = compute.communicate(timeout=120)
        assert compute.returncode == 0, said
    finally:
        compute.terminate()
        compute.communicate()
    assert workers(config) == []


def seconds_of_cpu(pid):
    """That the process has used, all its threads."""
    with open(f"/proc/{pid}/stat") as file:
        words = file.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime, proc_pid_stat(5)


@pytest.mark.heavy
def test_two_data_workers_share_the_work_of_the_example(tmp_path):
    """That it is faster follows where there are cores for them."""
    config = str(tmp_path / "compute.json")
    compute = job(2, *COMPUTE, config)
    training = job(2, str(EXAMPLE), config, "--epochs", "5", "--effort", "200")
    used = []
    try:
        for line in training.stdout:
            if "epoch 0" in line or "epoch 3" in line:
                used.append([seconds_of_cpu(pid) for pid in sorted(workers(config))])
        _, err = training.communicate(timeout=300)
        assert training.returncode == 0, err
        assert compute.wait(120) == 0
    finally:
        for one in (training, compute):
            one.terminate()
            one.communicate()
    first, second = (after - before for before, after in zip(*used, strict=True))
    assert min(first, second) > 0.2 * (first + second) > 0
