"""Ranks of one host that reduce in each other's GPU memory (CUDA IPC): real processes with the simulated driver."""

import ctypes
import os

import pytest
import torch

import horovod.torch as hvd
from horovod.common.basics import HorovodBasics

pytestmark = pytest.mark.heavy


def calls(name):
    """Return how often this process has called a driver function."""
    from tests.torch.simulated_gpu import adapter

    count = adapter().driver.library.simcuda_calls
    count.restype = ctypes.c_uint64
    return count(name.encode())


def same_as_on_the_cpu(gpus_of_the_host=1):
    from tests.torch.simulated_gpu import gpu, values

    if gpus_of_the_host > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(hvd.rank() % gpus_of_the_host)
    before = calls("cuLaunchKernel")
    generator = torch.Generator().manual_seed(hvd.rank())
    handles = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.uint8):
        for count in (1, 7, 1000, 70001):
            tensor = (torch.rand(count, generator=generator) * 50 - (dtype != torch.uint8) * 25).to(dtype)
            for op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Product):
                factors = {"prescale_factor": 0.3, "postscale_factor": 1.1} if dtype.is_floating_point else {}
                name = f"{dtype}.{count}.{op}"
                expected = hvd.allreduce_async(tensor, op=op, name="cpu." + name, **factors)
                handles.append((name, hvd.allreduce_async(gpu(tensor), op=op, name=name, **factors), expected))
    for name, handle, expected in handles:
        result, here = values(hvd.synchronize(handle)), hvd.synchronize(expected)
        assert torch.equal(result, here), name
    large = torch.rand(9_000_001, generator=generator)  # more than a buffer holds
    assert torch.equal(values(hvd.allreduce(gpu(large), name="large")), hvd.allreduce(large, name="cpu.large"))
    part = hvd.reducescatter(gpu(large[:30_001]), name="part", op=hvd.Sum)
    assert torch.equal(values(part), hvd.reducescatter(large[:30_001], name="cpu.part", op=hvd.Sum))
    received = values(hvd.broadcast(gpu(large[:1001]), hvd.size() - 1, name="told"))
    assert torch.equal(received, hvd.broadcast(large[:1001], hvd.size() - 1, name="cpu.told"))
    return calls("cuLaunchKernel") - before, calls("cuIpcOpenMemHandle_v2")


def test_results_equal_the_cpu_bitwise(gpus):
    for launched, _ in gpus(2).run(same_as_on_the_cpu, fresh=True):
        assert launched > 20


def counted():
    from tests.torch.simulated_gpu import gpu, values

    for _ in range(2):  # the first reduction loads kernels
        before = calls("cuLaunchKernel")
        assert values(hvd.allreduce(gpu(torch.ones(5)), name="x", op=hvd.Sum)).tolist() == [float(hvd.size())] * 5
    return calls("cuLaunchKernel") - before


def test_cuda_ipc_can_be_switched_off(gpus):
    assert gpus(2, HOROVOD_CUDA_IPC="0").run(counted) == [0, 0]


def leave():
    """Shut down every frontend of the process, so that its engine ends; return their names."""
    from horovod.common.frontends import state

    names = list(state.frontends)
    for name in names:
        HorovodBasics(name).shutdown()
    hvd.shutdown()  # also drops handles
    return names


def restarted():
    from horovod.common.frontends import TORCH

    opened, closed = calls("cuIpcOpenMemHandle_v2"), calls("cuIpcCloseMemHandle")
    seen, counts = [], []
    for _ in range(4):
        engine = TORCH.engine
        counts.append(counted())
        # A new job waits until the previous one has closed its handles, which may take long on a busy
        # machine.
        seen.append((calls("cuIpcOpenMemHandle_v2") - opened, calls("cuIpcCloseMemHandle") - closed))
        for name in leave():
            HorovodBasics(name).init()
        assert TORCH.engine is not engine
    return counts, seen


def test_initializing_again_closes_open_resources(gpus):
    for counts, seen in gpus(2).run(restarted, fresh=True):
        assert all(count > 0 for count in counts)
        assert seen == [(1, 0), (2, 1), (3, 2), (4, 3)]


@pytest.mark.heavy
def test_two_gpus_each_reduce_a_slice(gpus):
    ranks = gpus(4, SIMCUDA_DEVICES="2")
    ranks.fleet.dismiss()  # a driver reads its settings once
    try:
        for launched, opened in ranks.run(same_as_on_the_cpu, 2):
            assert launched > 20
            assert opened == 3
    finally:
        ranks.fleet.dismiss()
