"""A rank that dies, processes that fork, and GPU errors."""

import os
import subprocess
import sys
import time

import pytest
import torch

import horovod.torch as hvd
from tests.gpu.device import gpu, values


def one_dies(in_operation):
    hvd.allreduce(gpu(torch.ones(100)), name="before")
    if hvd.rank() == hvd.size() - 1:
        if in_operation:
            hvd.allreduce_async(gpu(torch.ones(1 << 20)), name="last")
        os.kill(os.getpid(), 9)
    start = time.monotonic()
    try:
        for step in range(1000):
            values(hvd.allreduce(gpu(torch.ones(1 << 20)), name="last" if step == 0 else f"after.{step}"))
    except hvd.HorovodInternalError as error:
        return time.monotonic() - start, str(error)
    return -1.0, ""


@pytest.mark.parametrize(("size", "in_operation"), [(2, False), (4, True)])
def test_a_rank_that_dies(ranks, size, in_operation):
    job = ranks(size)
    *rest, _ = job.run(one_dies, in_operation, errors=True)
    for seconds, text in rest:
        assert 0 <= seconds < 10, (seconds, text)
        assert f"rank {size - 1}" in text
    # The remaining processes form the next job with a new one.
    assert ranks(2).run(lambda: values(hvd.allreduce(gpu(torch.ones(3)), op=hvd.Sum)).tolist()) == [[2.0] * 3] * 2


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.full((4,), float(index), device="cpu")


def loaders_that_fork():
    n = hvd.size()
    for _ in range(2):
        loader = torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2, multiprocessing_context="fork")
        for step, rows in enumerate(loader):
            total = hvd.allreduce(gpu(rows), op=hvd.Sum, name=f"rows.{step}")
            assert values(total)[0, 0].item() == n * 8 * step
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert values(hvd.allreduce(gpu(torch.ones(2)), op=hvd.Sum)).tolist() == [float(n)] * 2


def test_loaders_that_fork(ranks):
    ranks(2).run(loaders_that_fork)


FAILS = """
import torch, horovod.torch as hvd
hvd.init()
x = torch.ones(1 << 20, device="cuda")
hvd.allreduce(x, name="before")
torch.cuda.synchronize()
if hvd.rank() == 1:
    index = torch.tensor([1 << 40], device="cuda")
    x[index] = 1  # an assertion on the GPU
try:
    for step in range(50):
        hvd.allreduce(x, name=f"after.{step}").sum().item()
except hvd.HorovodInternalError as error:
    print("RAISED", hvd.rank(), error, flush=True)
except RuntimeError as error:
    print("TORCH RAISED", error, flush=True)
"""


def horovodrun(size, *argv, **environment):
    command = [sys.executable, "-m", "horovod.runner", "-np", str(size), *argv]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=90, stdin=subprocess.DEVNULL
    )


@pytest.mark.usefixtures("cuda")
def test_a_gpu_that_fails_ends_the_job():
    start = time.monotonic()
    done = horovodrun(2, sys.executable, "-c", FAILS)
    output = done.stdout + done.stderr
    assert "RAISED 0" in output, output[-3000:]
    assert time.monotonic() - start < 60, output[-3000:]


ENDS = """
import torch, horovod.torch as hvd
hvd.init()
torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
handles = [hvd.allreduce_async(torch.ones(1 << 16, device="cuda"), op=hvd.Sum) for _ in range(10)]
kept = [hvd.synchronize(h) for h in handles]
print("SUM", kept[-1][0].item(), torch.cuda.device_count(), flush=True)
{end}
"""


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("end", ["hvd.shutdown()", "hvd.allreduce_async(torch.ones(1 << 20, device='cuda'))"])
def test_a_program_ends_in_order(end):
    done = horovodrun(2, sys.executable, "-c", ENDS.format(end=end))
    output = done.stdout + done.stderr
    assert output.count("SUM 2.0") == 2, output[-3000:]
    assert done.returncode == 0, output[-3000:]


@pytest.mark.usefixtures("cuda")
def test_the_launcher_assigns_gpus():
    done = horovodrun(1, "--gpus-per-worker", "1", sys.executable, "-c", ENDS.format(end=""))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "SUM 1.0 1" in done.stdout + done.stderr
    more = torch.cuda.device_count() + 1
    refused = horovodrun(more, "--gpus-per-worker", "1", sys.executable, "-c", ENDS.format(end=""))
    assert refused.returncode != 0
    assert f"needs {more} GPUs" in refused.stdout + refused.stderr
