"""Wrong use raises an error on every rank that names what disagrees, and the next collective works."""

import time

import pytest
import torch

import horovod.torch as hvd
from tests.ranks import on_ranks


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
        *(hvd.rank, hvd.size, hvd.local_rank, hvd.cross_size, hvd.join, hvd.barrier, hvd.stats),
        lambda: hvd.broadcast_parameters([one], 0),
        lambda: hvd.DistributedOptimizer(torch.optim.SGD([one], lr=0.1)),
    )
    for _ in ("before init", "after shutdown"):
        for call in calls:
            with pytest.raises(ValueError, match="Horovod has not been initialized"):
                call()
        hvd.init()
        hvd.shutdown()


@pytest.mark.parametrize(
    ("kind", "earlier"), [("allreduce_", 0), ("allreduce_", 5), ("allreduce", 1), ("broadcast_", 0), ("allgather", 0)]
)
def test_ctrl_c_in_a_blocking_call_leaves_the_memory_to_the_engine(pool, kind, earlier):
    """The caller may drop its tensors after an interrupt, but the engine writes to them when other ranks arrive."""

    def work(kind, earlier):
        import gc
        import os
        import signal
        import threading
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
