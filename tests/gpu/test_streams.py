"""Stream order before and after an operation, memory freed meanwhile, and graph captures."""

import threading
import time

import pytest
import torch

import horovod.torch as hvd
from tests.gpu.device import busy

LONG = 400.0  # milliseconds for which a kernel keeps the stream busy


def behind_a_long_kernel(completion):
    n, me = hvd.size(), hvd.rank()
    for name in ("warm", "warm", "a", "b", "a"):
        warm = name == "warm"  # loading kernels and pinning memory may wait for the GPU
        x = torch.zeros(1 << 20, device="cuda")
        kernel = busy(1.0 if warm else LONG)
        x.fill_(me + 1.0)  # after it
        start = time.perf_counter()
        handle = hvd.allreduce_async(x, op=hvd.Sum, name=name)
        called = time.perf_counter() - start
        if warm:
            x_after, y = x + 1, hvd.synchronize(handle) * 2
            assert y[:: 1 << 18].tolist() == [float(n * (n + 1))] * 4
            continue
        assert not kernel.query(), f"the call returned after {called:.3f} s, when the kernel had ended"
        x_after = x + 1  # later work on the stream may start
        if completion:
            assert n == 1 or not hvd.poll(handle)
        y = hvd.synchronize(handle)
        if n == 1 and completion:
            assert not kernel.query(), "synchronize waited for the GPU"
        if not completion:
            assert kernel.query(), "synchronize did not wait for the result"
        z = y * 2
        assert z[:: 1 << 18].tolist() == [float(n * (n + 1))] * 4
        assert x_after[-1].item() == me + 2


@pytest.mark.parametrize("completion", [True, False])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_behind_a_long_kernel(cuda, size, completion):
    cuda(size, HOROVOD_ENABLE_ASYNC_COMPLETION=str(int(completion))).run(behind_a_long_kernel, completion)


def on_side_streams():
    n, me = hvd.size(), hvd.rank()
    one, two = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
    for step in range(20):
        kept = []
        with torch.cuda.stream(one):
            busy(5.0 * (me + 1))
            for i in range(4):
                x = torch.full((1 << (8 + 4 * i),), float(me + step + i), device="cuda")
                kept.append((x, hvd.allreduce_async(x, op=hvd.Sum, name=f"side.{i}")))
        with torch.cuda.stream(two):
            for i, (_, handle) in enumerate(kept):
                y = hvd.synchronize(handle)
                y.record_stream(two)
                doubled = y * 2
                expected = 2.0 * (n * (step + i) + n * (n - 1) / 2)
                assert torch.all(doubled == expected).item(), (step, i, doubled[:4].tolist(), expected)


def memory_freed_early():
    """Memory that is reused too early would show other values."""
    n = hvd.size()
    for step in range(40):
        count = 1 << (6 + step % 16)
        handles, junk = [], []
        busy(1.0)
        for i in range(6):
            handles.append(
                hvd.allreduce_async(torch.full((count,), float(step + i), device="cuda"), op=hvd.Sum, name=f"f{i}")
            )
            junk.append(torch.full((count,), -1e9, device="cuda"))  # possibly at that tensor's address
        gathered = hvd.allgather_async(torch.full((count, 1), float(step), device="cuda"), name="g")
        junk.append(torch.full((count, 1), -1e9, device="cuda"))
        for i, handle in enumerate(handles):
            y = hvd.synchronize(handle)
            assert torch.all(y == n * (step + i)).item(), (step, i, y[:4].tolist())
        assert torch.all(hvd.synchronize(gathered) == step).item(), step


def freed_on_another_stream():
    n = hvd.size()
    side = torch.cuda.Stream()
    for step in range(30):
        x = torch.full((1 << 20,), float(step), device="cuda")
        handle = hvd.allreduce_async_(x, op=hvd.Sum, name="x")
        with torch.cuda.stream(side):
            busy(2.0)
            hvd.synchronize(handle)  # the default stream does not wait for the result
        del x, handle
        junk = torch.full((1 << 20,), -1e9, device="cuda")  # possibly at that tensor's address
        side.synchronize()
        torch.cuda.synchronize()
        assert torch.all(junk == -1e9).item(), "a result was written where another tensor is now"
        z = hvd.allreduce(torch.full((8,), float(step), device="cuda"), op=hvd.Sum, name="z")
        assert z.tolist() == [float(n * step)] * 8


def with_little_memory():
    """A rank empties its cache, which waits for the GPU, while operations are in flight."""
    n = hvd.size()
    for step in range(10):
        handles = [hvd.allreduce_async(torch.ones(1 << 18, device="cuda"), op=hvd.Sum, name=f"p{i}") for i in range(4)]
        if step % n == hvd.rank():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.empty(64 << 20, device="cuda")
        assert all(torch.all(hvd.synchronize(h) == n).item() for h in handles)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_streams_and_memory(cuda, size):
    job = cuda(size)
    for part in (on_side_streams, memory_freed_early, freed_on_another_stream, with_little_memory):
        job.run(part)


def captured():
    x, y = torch.ones(16, device="cuda"), torch.zeros(16, device="cuda")
    hvd.allreduce_(x, name="before")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y.add_(1)
        with pytest.raises(ValueError, match="is being captured into a graph"):
            hvd.allreduce_(x, name="within")
        y.add_(1)
    y.zero_()
    graph.replay()
    assert y.tolist() == [2.0] * 16  # the capture is still valid
    assert hvd.allreduce(x, op=hvd.Sum, name="within").tolist() == [float(hvd.size())] * 16


def captured_meanwhile():
    """One thread reduces on its own stream; captures of the main thread in the default, global mode stay valid."""
    n, steps = hvd.size(), 2000
    stream = torch.cuda.Stream()
    x, y = torch.zeros(1 << 16, device="cuda"), torch.zeros(4, device="cuda")
    hvd.allreduce_(x, op=hvd.Sum, name="meanwhile")
    torch.cuda.synchronize()
    failures = []

    def reduce():
        try:
            with torch.cuda.stream(stream):
                for _ in range(steps):
                    hvd.allreduce_(x, op=hvd.Sum, name="meanwhile")
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=reduce)
    thread.start()
    captures = 0
    while thread.is_alive() or captures < 5:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(50):
                y.add_(1)
        captures += 1
    thread.join()
    assert not failures, failures
    y.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert y.tolist() == [50.0] * 4
    assert hvd.allreduce(torch.ones(2, device="cuda"), op=hvd.Sum).tolist() == [float(n)] * 2
    return captures


@pytest.mark.parametrize("size", [1, 2])
def test_captures(cuda, size):
    job = cuda(size)
    job.run(captured)
    assert all(count >= 5 for count in job.run(captured_meanwhile))
