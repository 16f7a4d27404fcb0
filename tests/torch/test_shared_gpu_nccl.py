"""NCCL among ranks of one GPU, which NCCL takes for ranks of several hosts, and its error messages.

Processes with the simulated libraries; tests/gpu/test_nccl.py uses the real ones.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


SCRIPT = """
import os
import torch
import horovod.torch as hvd
from tests.torch.simulated_gpu import gpu, values

hvd.init()
os.environ["NCCL_HOSTID"] = str(hvd.rank())
tensor = gpu(torch.ones(5))
for step in range(100):
    assert values(hvd.allreduce(tensor, name=f"x{step}", op=hvd.Sum)).tolist() == [2.0] * 5
"""


@pytest.mark.heavy
def test_what_nccl_says_of_a_failure_is_in_the_output_of_the_rank(simulated_cuda):
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HOROVOD_CUDA_LIBRARY": str(simulated_cuda),
        "HOROVOD_NCCL_LIBRARY": str(simulated_cuda.with_name("libnccl.so.2")),
        "HOROVOD_CUDA_IPC": "0",
        "SIMNCCL_FAIL": "CommInitRankConfig:1",
    }
    environment.pop("NCCL_DEBUG", None)
    command = [sys.executable, "-m", "horovod.runner", "-np", "2", sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = [line for line in (done.stdout + done.stderr).splitlines() if "NCCL WARN" in line]
    assert said, done.stdout + done.stderr
    assert all("simulated failure of ncclCommInitRankConfig" in line for line in said)
    assert "ranks 0, 1 share a GPU with each other" in done.stderr
