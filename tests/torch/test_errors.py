"""Wrong use: an error on every rank that names what disagrees, and the next collective works."""

import pytest
import torch

import horovod.torch as hvd
from horovod.common.exceptions import RanksDisagreeError


def expect(call, *texts, kind=RanksDisagreeError):
    with pytest.raises(kind) as caught:
        call()
    missing = [t for t in texts if t not in str(caught.value)]
    assert not missing, f"{missing} not in: {caught.value}"
    # The next one works.
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [float(hvd.size())] * 2


MISMATCHES = {
    # what: (call by rank, texts that every rank's message has)
    "dtype": (
        lambda r: hvd.allreduce(torch.ones(4, dtype=torch.float32 if r != 1 else torch.float64), name="t", op=hvd.Sum),
        ["t", "float32", "float64", "rank 0", "rank 1"],
    ),
    "shape": (lambda r: hvd.allreduce(torch.ones(4 if r != 1 else 5), name="t"), ["t", "4", "5", "rank 0", "rank 1"]),
    "dimensions": (lambda r: hvd.allreduce(torch.ones(4, *([1] * r)), name="t"), ["t", "rank 0", "rank 1"]),
    "op": (
        lambda r: hvd.allreduce(torch.ones(4), name="t", op=hvd.Min if r == 1 else hvd.Max),
        ["t", "Min", "Max", "rank 0", "rank 1"],
    ),
    "prescale": (
        lambda r: hvd.allreduce(torch.ones(4), name="t", op=hvd.Sum, prescale_factor=1.5 if r == 1 else 2.5),
        ["t", "1.5", "2.5", "rank 0", "rank 1"],
    ),
    "postscale": (
        lambda r: hvd.allreduce(torch.ones(4), name="t", op=hvd.Sum, postscale_factor=1.5 if r == 1 else 2.5),
        ["t", "1.5", "2.5", "rank 0", "rank 1"],
    ),
    "root": (lambda r: hvd.broadcast(torch.ones(4), 1 if r == 1 else 0, name="t"), ["t", "root", "rank 0", "rank 1"]),
    "broadcast shape": (lambda r: hvd.broadcast(torch.ones(4 + (r == 1)), 0, name="t"), ["t", "4", "5", "rank 1"]),
    "allgather tail": (lambda r: hvd.allgather(torch.ones(2, 3 + (r == 1)), name="t"), ["t", "3", "4", "rank 1"]),
    "allgather dtype": (
        lambda r: hvd.allgather(torch.ones(2, dtype=torch.int32 if r == 1 else torch.int64), name="t"),
        ["t", "int32", "int64", "rank 1"],
    ),
    "allgather of a scalar": (lambda r: hvd.allgather(torch.ones([2] * (r != 1)), name="t"), ["t", "1"]),
    "alltoall of a scalar": (
        lambda r: hvd.alltoall(torch.ones([]) if r == 1 else torch.ones(2 * hvd.size()), name="t"),
        ["t", "1"],
    ),
    "alltoall tail": (
        lambda r: hvd.alltoall(torch.ones(2 * hvd.size(), 3 + (r == 1)), name="t"),
        ["t", "3", "4", "rank 1"],
    ),
    "reducescatter shape": (
        lambda r: hvd.reducescatter(torch.ones(6 + (r == 1)), name="t"),
        ["t", "6", "7", "rank 0", "rank 1"],
    ),
    "reducescatter op": (
        lambda r: hvd.reducescatter(torch.ones(6), name="t", op=hvd.Sum if r == 1 else hvd.Average),
        ["t", "Sum", "Average", "rank 1"],
    ),
}


def mismatch(what):
    call, texts = MISMATCHES[what]
    expect(lambda: call(hvd.rank()), *texts)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("what", MISMATCHES)
def test_mismatch(pool, what, size):
    pool(size).run(mismatch, what)


def different_operations():
    # The two go by different names on the wire (allreduce.t, allgather.t), so they are made to meet in a name of the
    # engine's.
    from horovod import _core
    from horovod.common.state import state

    t = torch.ones(4)
    kind = _core.KIND_ALLREDUCE if hvd.rank() == 0 else _core.KIND_BROADCAST
    p = t.data_ptr()
    work = state.submit(kind, "same", p, p, t.shape, 7, 1, 0, 1.0, 1.0, 0, None, "", 0)
    expect(lambda: work.wait(10), "same", "rank 0", "rank 1")


def test_different_operations(pool):
    pool(2).run(different_operations)


def name_in_flight():
    n = hvd.size()
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(3), name="twice", op=hvd.Sum)
        with pytest.raises(ValueError) as caught:
            hvd.allreduce_async(torch.ones(3), name="twice", op=hvd.Sum)
        assert "twice" in str(caught.value)
        hvd.barrier()
    else:
        hvd.barrier()
        handle = hvd.allreduce_async(torch.ones(3), name="twice", op=hvd.Sum)
    assert hvd.synchronize(handle).tolist() == [float(n)] * 3
    assert hvd.allreduce(torch.ones(3), name="twice", op=hvd.Sum).tolist() == [float(n)] * 3


def test_name_in_flight(pool):
    pool(2).run(name_in_flight)


def call_time_errors():
    n = hvd.size()
    for call, text in (
        (lambda: hvd.alltoall(torch.ones(2 * n + 1)), str(2 * n + 1)),
        (lambda: hvd.alltoall(torch.ones(n), splits=[1] * (n + 1)), str(n + 1)),
        (lambda: hvd.alltoall(torch.ones(n), splits=[2] * n), str(2 * n)),
        (lambda: hvd.broadcast(torch.ones(1), n), str(n)),
        (lambda: hvd.broadcast(torch.ones(1), -1), "-1"),
        (lambda: hvd.reducescatter(torch.ones(n), op=hvd.Max), "Max"),
        (lambda: hvd.grouped_allreduce([torch.ones(2), torch.ones(2, 3).t()], op=hvd.Sum), "contiguous"),
    ):
        expect(call, text, kind=ValueError)


def test_errors_at_call_time(pool):
    pool(2).run(call_time_errors)


def failed_group():
    r = hvd.rank()
    tensors = [torch.ones(2), torch.ones(3 + r)]
    expect(lambda: hvd.grouped_allreduce(tensors, name="g", op=hvd.Sum), "g", "3", "4")


def test_mismatch_in_a_group(pool):
    pool(2).run(failed_group)


def before_init():
    calls = (
        lambda: hvd.allreduce(torch.ones(1)),
        lambda: hvd.allgather(torch.ones(1)),
        lambda: hvd.broadcast(torch.ones(1), 0),
        lambda: hvd.alltoall(torch.ones(1)),
        lambda: hvd.reducescatter(torch.ones(1)),
        hvd.rank,
        hvd.join,
        hvd.barrier,
        lambda: hvd.broadcast_parameters([torch.ones(1)], 0),
        lambda: hvd.DistributedOptimizer(torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)),
    )
    for call in calls:
        with pytest.raises((ValueError, hvd.HorovodInternalError)) as caught:
            call()
        assert "init" in str(caught.value)


def test_before_init(pool):
    pool(1, initialized=False).run(before_init)


def pending_at_shutdown():
    import time

    hvd.init()
    if hvd.rank() == 0:
        time.sleep(0.5)
        hvd.shutdown()
        return None
    started = time.monotonic()
    with pytest.raises(hvd.HorovodInternalError) as caught:
        hvd.allreduce(torch.ones(2), name="never")
    assert time.monotonic() - started < 20
    return str(caught.value)


def test_shutdown_fails_what_is_pending(pool):
    results = pool(2, initialized=False).run(pending_at_shutdown)
    assert "rank 0" in results[1]


def test_a_forked_child_cannot_wait_for_its_parents_operation(pool):
    def work():
        import os
        import time

        rank = hvd.rank()
        tensor = torch.full((10_000,), float(rank + 1))
        if rank == 1:
            time.sleep(1)  # so that the operation is under way on rank 0 when that forks
            hvd.allreduce_(tensor, op=hvd.Sum, name="forked")
            return True, tensor.unique().tolist()
        handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name="forked")
        child = os.fork()
        if child == 0:
            try:
                hvd.synchronize(handle)
            except Exception as error:
                os._exit(7 if "fork" in str(error) else 8)
            os._exit(9)
        start = time.monotonic()
        _, status = os.waitpid(child, 0)
        waited = time.monotonic() - start
        hvd.synchronize(handle)
        return os.waitstatus_to_exitcode(status) == 7 and waited < 20, tensor.unique().tolist()

    assert pool(2).run(work) == [(True, [3.0]), (True, [3.0])]


@pytest.mark.parametrize("earlier", [0, 1, 5])
@pytest.mark.parametrize("kind", ["allreduce_", "allreduce", "broadcast_", "allgather"])
def test_ctrl_c_in_a_blocking_call_leaves_the_memory_to_the_engine(pool, kind, earlier):
    """The caller may drop its tensors after an interrupt; the engine still writes when the others come."""

    def work(kind, earlier):
        import gc
        import os
        import signal
        import threading
        import time
        import weakref

        def call(tensor):
            if kind == "broadcast_":
                return hvd.broadcast_(tensor, root_rank=1, name=f"ctrl-c.{earlier}")
            if kind == "allgather":
                return hvd.allgather(tensor, name=f"ctrl-c.{earlier}")
            return getattr(hvd, kind)(tensor, op=hvd.Sum, name=f"ctrl-c.{earlier}")

        for _ in range(earlier):
            call(torch.ones(50_000))
        hvd.barrier()
        if hvd.rank() == 1:
            time.sleep(0.6)
            call(torch.ones(50_000))
            return hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
        tensor = torch.ones(50_000)
        memory = weakref.ref(tensor)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT]).start()
            with pytest.raises(KeyboardInterrupt):
                call(tensor)
        finally:
            signal.signal(signal.SIGINT, before)
        del tensor
        gc.collect()
        assert memory() is not None
        return hvd.allreduce(torch.ones(1), op=hvd.Sum).item()

    assert pool(2).run(work, kind, earlier, timeout=30) == [2.0, 2.0]
