"""Training on a simulated GPU.

The tests of tests/gpu with two ranks that each have a device, and cases that a real GPU would not show.

PyTorch itself has no CUDA here, so some tests need tests/gpu: backward passes on streams, autocast, graphs,
``torch.compile`` (dynamo does not trace tensor subclasses that claim to be on a GPU).
"""

import ctypes
import os
import sys
import threading

import pytest
import torch

import horovod.torch as hvd
from horovod.common.exceptions import OutOfSyncError
from tests.gpu import test_training as training
from tests.ranks import on_gpu_ranks
from tests.torch.test_amp import scaled
from tests.torch.test_sync_batch_norm import compare

pytestmark = pytest.mark.heavy

CASES = {
    **{case: (training.equal_to_one_process, *training.OPTIONS[case]) for case in training.OPTIONS},
    **{name: (training.compressed, name) for name in ("fp16", "wire_fp16", "wire_int8")},
    "adasum": (training.with_adasum,),
    "sparse gradients": (training.sparse_embedding,),
    "one rank overflows": (scaled, hvd.Average, hvd.Compression.none, True, float("inf"), "cuda", torch.float16),
    "a model on both": (training.mixed_model,),
    "states": (training.states,),
    "SyncBatchNorm": (compare, (3, 4, 4), torch.float32, {}, "cuda"),
    "sparse tensors": (training.sparse_tensors,),
    "gradients of operations": (training.gradients_of_operations,),
}


@pytest.mark.parametrize("case", CASES)
def test_same_as_on_a_real_gpu(gpu_ranks, case):
    gpu_ranks(2).run(*CASES[case])


def steps(optimizer, net, count, first=0):
    for number in range(first, first + count):
        optimizer.zero_grad()
        net(training.batch(number, hvd.rank())).square().mean().backward()
        optimizer.step()


def wrapped(**options):
    from tests.torch.simulated_gpu import OnGpu

    net = training.network()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), **options)
    assert all(isinstance(p, OnGpu) for p in net.parameters())
    return net, optimizer


@on_gpu_ranks(2)
def test_ranks_with_different_numbers_of_steps():
    net, optimizer = wrapped()
    steps(optimizer, net, 2 + 2 * hvd.rank())
    assert hvd.join() == hvd.size() - 1
    hvd.broadcast_parameters(net.state_dict(), root_rank=hvd.size() - 1)
    assert len(hvd.check_in_sync(net, optimizer)) == 64
    with torch.no_grad():
        net[0].weight[0, 0] += hvd.rank()
    with pytest.raises(OutOfSyncError, match=r"model\.0\.weight"):
        hvd.check_in_sync(net)


@on_gpu_ranks(2)
def test_results_on_other_streams():
    """Results belong to the stream that waits for them; the program continues while a stream is busy."""
    from tests.torch.simulated_gpu import Stream, adapter, gpu, on_stream, values

    n, driver = hvd.size(), adapter().driver
    one, two = Stream(driver), Stream(driver)
    driver.set("delay_us", 10_000)
    for number in range(3):
        free = threading.Event()
        with on_stream(one):
            x, several = gpu(torch.full((1000,), float(number))), [gpu(torch.ones(3)), gpu(torch.ones(5))]
            one.occupy(free)
            handle = hvd.allreduce_async_(x, op=hvd.Sum, name="x")
            group = hvd.grouped_allreduce_async(several, op=hvd.Sum, name="group")
        assert not hvd.poll(handle)
        free.set()
        with on_stream(two):
            y = hvd.synchronize(handle)
            assert y is x
            assert values(y).tolist() == [float(number * n)] * 1000
            assert [values(t).sum().item() for t in hvd.synchronize(group)] == [3.0 * n, 5.0 * n]
    driver.set("delay_us", 100)
    with on_stream(two):
        net, optimizer = wrapped()
        steps(optimizer, net, 3)
        hvd.check_in_sync(net)


def orphans():
    """A forked child cannot use its parent's GPU, and reports that without calling the driver."""
    from tests.torch.simulated_gpu import gpu, values

    handles = [hvd.allreduce_async_(gpu(torch.ones(4)), op=hvd.Sum, name=f"x{i}") for i in range(3)]
    gathered = hvd.allgather_async(gpu(torch.ones(4)), name="y")
    while not all(map(hvd.poll, (*handles, gathered))):
        pass
    records = sys.modules["horovod.torch.ops.handles"]._records
    end, child_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            states = [hvd.poll(handles[0])]
            for handle in (handles[0], gathered):
                try:
                    states.append(hvd.synchronize(handle))
                except hvd.HorovodInternalError as error:
                    states.append(str(error))
            try:
                records[handles[1]].work._work.order(0)
            except hvd.HorovodInternalError as error:
                states.append(str(error))
            os.write(child_end, repr(states).encode())
        finally:
            os._exit(0)
    os.close(child_end)
    with os.fdopen(end) as pipe:
        states = pipe.read()
    os.waitpid(pid, 0)
    assert [values(hvd.synchronize(handle)).sum().item() for handle in handles] == [4.0 * hvd.size()] * 3
    assert values(hvd.synchronize(gathered)).numel() == 4 * hvd.size()
    return states


def test_a_forked_child(gpu_ranks):
    text = "the result is on cuda:0 of the parent process, which a forked child cannot use; wait for it in the parent"
    below = "CUDA GPU 0 (Simulated GPU 0) belongs to the parent process; a forked child cannot use it"
    expected = [True, f"allreduce.x0: {text}", f"allgather.y: {text}", below]
    assert gpu_ranks(2).run(orphans) == [repr(expected)] * 2


@on_gpu_ranks(2)
def test_capture_into_a_graph():
    from tests.torch.simulated_gpu import adapter, gpu, values

    driver, x = adapter().driver, gpu(torch.ones(4))
    values(hvd.allreduce(x, name="before"))
    kept = hvd.allreduce_async_(x, op=hvd.Sum, name="kept")
    lost = hvd.allreduce_async_(gpu(torch.ones(4)), op=hvd.Sum, name="lost")
    while not (hvd.poll(kept) and hvd.poll(lost)):
        pass
    gpu(torch.ones(4))  # leaves free memory for the refused call's result: a captured stream cannot allocate
    stream, graph = driver.stream.handle, ctypes.c_void_p()
    driver.check(driver.library.cuStreamBeginCapture_v2(stream, 0))
    with pytest.raises(ValueError, match=r"'allreduce\.x': the stream is being captured into a graph.*call it outside"):
        hvd.allreduce(x, name="x")
    with pytest.raises(ValueError, match=r"allreduce\.lost: cannot wait .*being captured.*outside"):
        hvd.synchronize(lost)
    driver.check(driver.library.cuStreamEndCapture(stream, ctypes.byref(graph)))  # the capture is still valid
    assert values(hvd.synchronize(kept)).tolist() == [float(hvd.size())] * 4
