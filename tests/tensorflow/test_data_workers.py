"""Both sides of a data service as separate jobs, and a data worker that is killed."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.documents import ROOT
from tests.later import need, need_spark

need("tensorflow")

QUIET = {"HOROVOD_GLOO_IFACE": "lo", "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONUNBUFFERED": "1"}
EXAMPLE = ROOT / "examples/tensorflow/data_service.py"
RUN = (sys.executable, "-m", "horovod.runner", "-np", "2")
COMPUTE = (*RUN, sys.executable, "-m", "horovod.tensorflow.data.compute_worker")
ON_SPARK = (sys.executable, "-m", "horovod.spark.tensorflow.compute_worker")
SPARK = "--master local[2] --conf spark.ui.enabled=false --conf spark.driver.host=127.0.0.1 pyspark-shell"


def job(*argv):
    spark = {"PYSPARK_SUBMIT_ARGS": SPARK, "PYSPARK_PYTHON": sys.executable}
    environ = {**os.environ, **QUIET, **spark, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)


def workers(config):
    """Return the pids of its data workers."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                argv = file.read().decode().split("\0")
        except OSError:
            continue
        if config in argv and any("horovod.tensorflow.data.data_worker" in argument for argument in argv):
            found.append(int(pid))
    return found


def killed_worker(config, training):
    """Kill one data worker during training."""
    for line in training.stdout:
        if "epoch 0" in line:
            victim = workers(config)[-1]
            os.kill(victim, signal.SIGKILL)
            return victim
    raise AssertionError(training.communicate()[1])


@pytest.mark.heavy
@pytest.mark.parametrize("program", [COMPUTE, ON_SPARK], ids=["horovodrun", "spark"])
def test_two_jobs_and_a_data_worker_that_is_killed(tmp_path, program):
    if program is ON_SPARK:
        need_spark()
    config = str(tmp_path / "compute.json")
    compute = job(*program, config)
    training = job(*RUN, sys.executable, str(EXAMPLE), config, "--epochs", "6", "--effort", "20")
    try:
        victim = killed_worker(config, training)
        out, err = training.communicate(timeout=300)
        assert training.returncode == 0, err
        assert "epoch 5" in out
        _, output = compute.communicate(timeout=120)
        assert compute.returncode == 0, output
        assert f"(pid {victim}) was ended by signal 9" in output
    finally:
        for one in (training, compute):
            one.terminate()
            one.communicate()
    until = time.monotonic() + 60
    while workers(config) and time.monotonic() < until:
        time.sleep(0.1)
    assert workers(config) == []
    assert os.listdir(tmp_path) == []
