"""Processes that a launcher has started together and that train without ``hvd.init()``."""

import os
import subprocess
import sys
import warnings

import pytest

from horovod.common.frontends import State
from horovod.common.training_loop import observations
from tests.runner.launching import run_job

MPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4444"}


class Distributed:
    """Stands for ``torch.distributed``."""

    def __init__(self, initialized):
        self.is_available, self.is_initialized = lambda: True, lambda: initialized


@pytest.fixture
def launched(monkeypatch):
    """launched(modules, **environment): check a process with these modules and variables."""
    monkeypatch.setattr(observations, "state", State())
    monkeypatch.setattr(observations, "find_rank_above", lambda env: None)

    def check(modules, **environment):
        monkeypatch.setattr(observations, "_launch_checked", False)
        for name in {**MPI, **TORCHRUN, "HOROVOD_TRAINING_CHECKS": "", "HOROVOD_RUN_FUNCTION_FD": ""}:
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        for name in ("mpi4py.MPI", "torch.distributed"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        observations.check_launch("Do this")

    return check


def test_processes_training_separately(launched):
    apart = {"torch.distributed": Distributed(False)}
    with pytest.raises(RuntimeError, match=r"Open MPI started this process as rank 0 of 2, .*Do this\."):
        launched(apart, **MPI)
    with pytest.warns(UserWarning, match="train separate models"):
        launched(apart, **TORCHRUN)


def test_processes_outside_the_job(launched):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launched({"torch.distributed": Distributed(True)}, **MPI)
        launched({"mpi4py.MPI": object()}, **MPI)
        launched({}, **MPI, HOROVOD_TRAINING_CHECKS="0")
        launched({}, **MPI, HOROVOD_RUN_FUNCTION_FD="5")
        launched({}, **{**TORCHRUN, "RANK": "1"})  # rank 0 warns for all
        launched({})


SCRIPT = """
import torch
import horovod.torch
p = torch.nn.Parameter(torch.ones(1))
p.grad = torch.ones(1)
torch.optim.SGD([p], 0.1).step()
"""

KERAS = """
import keras, numpy
import horovod.keras
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(numpy.ones((2, 2)), numpy.ones((2, 1)), verbose=0)
"""


@pytest.mark.heavy
def test_the_first_optimizer_step_of_a_launched_job_without_init_fails(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    job = ["-np", "2", sys.executable, str(script)]
    done = run_job(job)
    assert done.code == 1
    assert "RuntimeError: horovodrun started this process as rank 1 of 2, but it trains without hvd.init()" in done.err
    assert run_job(job, environment={"HOROVOD_TRAINING_CHECKS": "0"}).code == 0


@pytest.mark.heavy
def test_fit_without_init_fails():
    environment = {**os.environ, **MPI, "KERAS_BACKEND": "torch"}
    done = subprocess.run([sys.executable, "-c", KERAS], env=environment, capture_output=True, text=True, timeout=120)
    assert "RuntimeError: Open MPI started this process as rank 0 of 2" in done.stderr
