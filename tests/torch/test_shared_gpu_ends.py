"""Shutdown and failures of jobs with unfinished GPU reductions over CUDA IPC: processes with the simulated driver."""

import os
import signal
import threading
import time

import pytest
import torch

import horovod.torch as hvd

pytestmark = pytest.mark.heavy


@pytest.fixture
def two(gpus):
    """two(function, *args) returns the function's result on rank 0, or raises rank 0's error; rank 1 may die."""
    return lambda function, *args: gpus(2).run(function, *args, errors=True, timeout=80.0)[0]


def stop():
    """End the engine. (hvd.shutdown() keeps it for other frontends, of which test workers have one.)"""
    from horovod.common import basics

    with basics._lock:
        basics._stop("the test ends")


def reduces():
    """Return True if a reduction launches GPU kernels, instead of using the host."""
    from tests.torch.simulated_gpu import gpu, values
    from tests.torch.test_shared_gpu import calls

    for _ in range(2):
        before = calls("cuLaunchKernel")
        assert values(hvd.allreduce(gpu(torch.ones(5)), name="x", op=hvd.Sum)).tolist() == [float(hvd.size())] * 5
    return calls("cuLaunchKernel") > before


def done_within(seconds):
    """Return True if the program's stream finishes in time."""
    from tests.torch.simulated_gpu import adapter

    driver = adapter().driver
    event = driver.record(driver.stream)
    deadline = time.monotonic() + seconds
    while (code := driver.library.cuEventQuery(event)) == 600 and time.monotonic() < deadline:
        time.sleep(0.005)
    return code == 0


def loses_a_rank_that_is_waited_for(launched):
    """Lose a rank that rank 0 waits for. ``launched``: a file that rank 0 creates when it waits."""
    from tests.torch.simulated_gpu import adapter, gpu

    assert reduces()
    hvd.allgather(gpu(torch.ones(10)), name="staged")  # pins memory, which is freed at the end
    driver = adapter().driver
    driver.stream.synchronize()
    tensor = gpu(torch.ones(1 << 20))
    if hvd.rank() == 1:  # its launched work never finishes
        driver.stream.occupy(threading.Event())
        hvd.allreduce_async_(tensor, name="lost", op=hvd.Sum)
        deadline = time.monotonic() + 30
        while not launched.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.allreduce_(tensor, name="lost", op=hvd.Sum)  # returns once launched; the program's stream waits for the result
    assert not done_within(0.1)
    launched.touch()
    assert done_within(15), "the program's stream waits for a rank that is lost"
    with pytest.raises(hvd.HorovodInternalError, match="rank 1"):
        hvd.allreduce_(tensor, name="next", op=hvd.Sum)
    driver.set("sync_chance", 100)  # freeing memory waits for all work of the GPU
    start = time.monotonic()
    stop()
    driver.set("sync_chance", 0)
    return time.monotonic() - start


def test_a_lost_rank_does_not_keep_streams_waiting(two, tmp_path):
    elapsed = two(loses_a_rank_that_is_waited_for, tmp_path / "launched")
    assert isinstance(elapsed, float), elapsed
    assert elapsed < 15


def leaves_with_work_under_way():
    from tests.torch.simulated_gpu import adapter, gpu, values

    assert reduces()
    tensor = gpu(torch.ones(1000))
    if hvd.rank() == 1:
        go = threading.Event()
        adapter().driver.stream.occupy(go)
        threading.Timer(3, go.set).start()
        hvd.allreduce_(tensor, name="last", op=hvd.Sum)
        stop()
        os._exit(0)
    hvd.allreduce_(tensor, name="last", op=hvd.Sum)
    return done_within(20) and values(tensor).tolist() == [2.0] * 1000


@pytest.mark.heavy
def test_ranks_that_leave_first_finish_pending_work(two):
    assert two(leaves_with_work_under_way) is True
