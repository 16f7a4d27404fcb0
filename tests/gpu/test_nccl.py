"""NCCL through the engine: two ranks on one GPU, which NCCL takes for two hosts because NCCL_HOSTID differs.

Tests results and shutdown; timings are meaningless here.
"""

import os
import re
import signal
import time

import pytest
import torch

import horovod.torch as hvd
from tests.gpu.device import DEVICE, SIMULATED, gpu, same_bits, values
from tests.gpu.test_operations import FLOATS, INTEGERS, both


@pytest.fixture
def two(ranks, request):
    """Two ranks whose processes end with the test, because NCCL reads its settings once."""
    if DEVICE == "cpu":
        pytest.skip("the CPU has no NCCL")
    environment = {"NCCL_SOCKET_IFNAME": "lo", "HOROVOD_CUDA_IPC": "0", "HOROVOD_SHARED_GPU": "1"}
    if SIMULATED:
        environment["HOROVOD_NCCL_LIBRARY"] = str(request.getfixturevalue("simulated_cuda").with_name("libnccl.so.2"))
    job = ranks(2, **environment)
    yield job
    job.dismiss()


def executed():
    """Return the operations executed on the host: those of the CPU, and those of the GPU that use this path."""
    from horovod.common.frontends import TORCH

    return TORCH.engine.stats()["operations"]


def until_by_nccl(apart=True):
    """Run operations until one uses NCCL; return True if one does.

    A communicator takes a moment to form, during which operations go through the host. ``apart``: NCCL takes ranks
    for those of two hosts.
    """
    if apart:
        os.environ["NCCL_HOSTID"] = f"rank {hvd.rank()}"
    tensor = gpu(torch.ones(5))
    deadline = time.monotonic() + 30
    for step in range(10_000):
        by_the_host = executed()
        assert values(hvd.allreduce(tensor, name=f"until.{step}", op=hvd.Sum)).tolist() == [2.0] * 5
        over = executed() == by_the_host
        late = time.monotonic() > deadline or (step > 50 and not apart)
        # All ranks check together.
        if hvd.allreduce(torch.tensor([int(over), int(late)]), op=hvd.Max, name="over").any():
            return over
    return False


def small(shape, dtype, seed=0):
    """Return numbers whose sums and products are exact in every dtype and order."""
    generator = torch.Generator(device="cpu").manual_seed(1000 * seed + hvd.rank())
    return torch.randint(0, 4, shape, generator=generator, device="cpu").to(dtype)


def every_operation():
    assert until_by_nccl(), "nothing goes by NCCL"
    before = executed()
    n, me, on_the_cpu = hvd.size(), hvd.rank(), 0
    for dtype in [*FLOATS, *INTEGERS]:
        for op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product):
            if op is hvd.Average and not dtype.is_floating_point:
                continue
            for count in (1, 7, 100_001):
                both(hvd.allreduce, f"{dtype}.{op}.{count}", small((count,), dtype, count), op=op)
                on_the_cpu += 1
        both(hvd.allgather, f"gather.{dtype}", small((me + 1, 3), dtype))
        both(hvd.broadcast, f"broadcast.{dtype}", small((5,), dtype), root_rank=1)
        both(hvd.reducescatter, f"scatter.{dtype}", small((2 * n + 1, 3), dtype), op=hvd.Sum)
        splits = [me + r for r in range(n)]
        source = small((sum(splits), 2), dtype)
        expected, _ = hvd.alltoall(source, splits=splits, name=f"a.cpu.{dtype}")
        got, received = hvd.alltoall(gpu(source), splits=splits, name=f"a.gpu.{dtype}")
        assert same_bits(values(got), expected)
        assert received.tolist() == [r + me for r in range(n)]
        on_the_cpu += 4
    sources = [small((4 + i, 3), torch.float32, i) for i in range(9)]
    expected = hvd.grouped_allreduce(sources, name="group.cpu", op=hvd.Average)
    got = hvd.grouped_allreduce([gpu(t) for t in sources], name="group.gpu", op=hvd.Average)
    assert all(same_bits(values(g), e) for g, e in zip(got, expected, strict=True))
    on_the_cpu += len(sources)
    return executed() - before - on_the_cpu


def test_every_operation(two):
    assert two.run(every_operation, timeout=120.0) == [0, 0]  # no GPU operation goes through the host


def test_one_gpu_for_two_ranks_is_refused_before_nccl(two):
    assert two.run(until_by_nccl, False) == [False, False]


def keep_busy(seconds):
    """Keep the current stream busy for this time, or without limit."""
    if SIMULATED:
        import threading

        from tests.torch.simulated_gpu import adapter

        adapter().driver.stream.occupy(threading.Event())
    else:
        torch.cuda._sleep(int(seconds * 2e9))


def loses_a_rank(marker):
    assert until_by_nccl(), "nothing goes by NCCL"
    tensor = gpu(torch.ones(1 << 20))
    hvd.barrier()
    if hvd.rank() == 1:
        keep_busy(20)
        handle = hvd.allreduce_async_(tensor, name="lost", op=hvd.Sum)
        time.sleep(1)  # the engine launches it on both meanwhile; NCCL's kernel there waits for this one
        assert not hvd.poll(handle)
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    handle = hvd.allreduce_async_(tensor, name="lost", op=hvd.Sum)
    while not hvd.poll(handle):
        time.sleep(0.001)
    elapsed = time.time() - marker.stat().st_mtime
    with pytest.raises(hvd.HorovodInternalError) as error:
        hvd.synchronize(handle)
    values(tensor)  # NCCL's kernel does not block the stream
    return elapsed, str(error.value)


def test_a_lost_rank_is_named_with_the_tensor_within_two_seconds(two, tmp_path):
    (elapsed, text), _ = two.run(loses_a_rank, tmp_path / "marker", errors=True, timeout=90.0)
    assert re.search(r"allreduce\.lost.*rank 1 .*was lost", text), text
    assert elapsed < (10 if SIMULATED else 2), elapsed
