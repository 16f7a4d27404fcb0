"""Wrong use: an error on every rank that names what disagrees, and the next collective works."""

import time

import pytest
import torch

import horovod.torch as hvd
from horovod.common.exceptions import RanksDisagreeError
from tests.ranks import on_ranks


def expect(call, *texts, kind=RanksDisagreeError):
    with pytest.raises(kind) as caught:
        call()
    missing = [t for t in texts if t not in str(caught.value)]
    assert not missing, f"{missing} not in: {caught.value}"
    # The next one works.
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [float(hvd.size())] * 2


# Rank 1 gives something else than the others: the call, and what the message on each rank has besides the ranks.
# (Of allreduce and broadcast, tests/conformance has more.)
MISMATCHES = {
    "dimensions": (lambda odd: hvd.allreduce(torch.ones(4, *([1] * odd)), name="t"), ["rank 0"]),
    "prescale": (
        lambda odd: hvd.allreduce(torch.ones(4), name="t", op=hvd.Sum, prescale_factor=2.5 - odd),
        ["1.5", "2.5", "rank 0"],
    ),
    "postscale": (
        lambda odd: hvd.allreduce(torch.ones(4), name="t", op=hvd.Sum, postscale_factor=2.5 - odd),
        ["1.5", "2.5", "rank 0"],
    ),
    "broadcast shape": (lambda odd: hvd.broadcast(torch.ones(4 + odd), 0, name="t"), ["4", "5"]),
    "allgather tail": (lambda odd: hvd.allgather(torch.ones(2, 3 + odd), name="t"), ["3", "4"]),
    "allgather dtype": (
        lambda odd: hvd.allgather(torch.ones(2, dtype=torch.int32 if odd else torch.int64), name="t"),
        ["int32", "int64"],
    ),
    "allgather of a scalar": (lambda odd: hvd.allgather(torch.ones([2] * (not odd)), name="t"), []),
    "alltoall of a scalar": (lambda odd: hvd.alltoall(torch.ones([2 * hvd.size()] * (not odd)), name="t"), []),
    "alltoall tail": (lambda odd: hvd.alltoall(torch.ones(2 * hvd.size(), 3 + odd), name="t"), ["3", "4"]),
    "reducescatter shape": (lambda odd: hvd.reducescatter(torch.ones(6 + odd), name="t"), ["6", "7", "rank 0"]),
    "reducescatter op": (
        lambda odd: hvd.reducescatter(torch.ones(6), name="t", op=hvd.Sum if odd else hvd.Average),
        ["Sum", "Average"],
    ),
    "a group": (
        lambda odd: hvd.grouped_allreduce([torch.ones(2), torch.ones(3 + odd)], name="t", op=hvd.Sum),
        ["3", "4"],
    ),
}


@on_ranks(3)
def test_mismatches():
    for call, texts in MISMATCHES.values():
        expect(lambda call=call: call(int(hvd.rank() == 1)), "t", "1", *texts)


@on_ranks(2)
def test_different_operations():
    # The two go by different names on the wire (allreduce.t, allgather.t), so they are made to meet in a name of the
    # engine's.
    from horovod import _core
    from horovod.common.state import state

    t = torch.ones(4)
    kind = _core.KIND_ALLREDUCE if hvd.rank() == 0 else _core.KIND_BROADCAST
    p = t.data_ptr()
    work = state.submit(kind, "same", p, p, t.shape, 7, 1, 0, 1.0, 1.0, 0, None, "", 0)
    expect(lambda: work.wait(10), "same", "rank 0", "rank 1")


@on_ranks(2)
def test_errors_at_call_time():
    n = hvd.size()
    for call, text in (
        (lambda: hvd.alltoall(torch.ones(2 * n + 1)), str(2 * n + 1)),
        (lambda: hvd.alltoall(torch.ones(n), splits=[2] * n), str(2 * n)),
        (lambda: hvd.broadcast(torch.ones(1), -1), "-1"),
        (lambda: hvd.grouped_allreduce([torch.ones(2), torch.ones(2, 3).t()], op=hvd.Sum), "contiguous"),
    ):
        expect(call, text, kind=ValueError)


@on_ranks(2)
def test_groups_of_unlike_sizes():
    for name in ("t", None):
        for function in (hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter):
            began = time.monotonic()
            expect(
                lambda call=function, name=name: call([torch.ones(4)] * (2 + hvd.rank()), name=name),
                *("size of the group", "2 on rank 0", "3 on rank 1"),
            )
            assert time.monotonic() - began < 50  # before the stall check speaks
            assert function([torch.ones(4)] * 2, name=name)


@on_ranks(1, initialized=False)
def test_outside_of_a_job():
    one = torch.ones(1, requires_grad=True)
    calls = (
        lambda: hvd.allreduce(one),
        lambda: hvd.allreduce_async_(one.detach()),
        lambda: hvd.grouped_allreduce([one]),
        lambda: hvd.allgather(one),
        lambda: hvd.broadcast(one, 0),
        lambda: hvd.alltoall(one),
        lambda: hvd.reducescatter(one),
        *(hvd.rank, hvd.size, hvd.local_rank, hvd.cross_size, hvd.join, hvd.barrier),
        lambda: hvd.broadcast_parameters([one], 0),
        lambda: hvd.DistributedOptimizer(torch.optim.SGD([one], lr=0.1)),
    )
    for _ in ("before init", "after shutdown"):
        for call in calls:
            with pytest.raises(ValueError, match="Horovod has not been initialized"):
                call()
        hvd.init()
        hvd.shutdown()


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


@pytest.mark.parametrize(
    ("kind", "earlier"), [("allreduce_", 0), ("allreduce_", 5), ("allreduce", 1), ("broadcast_", 0), ("allgather", 0)]
)
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
