"""Wrong use raises an error on every rank that names what disagrees, and the next collective works."""

import time

import pytest
import torch

import horovod.torch as hvd


@pytest.mark.parametrize(
    ("kind", "earlier"), [("allreduce_", 0), ("allreduce_", 5), ("allreduce", 1), ("broadcast_", 0), ("allgather", 0)]
)
def test_ctrl_c_in_a_blocking_call_keeps_memory_for_the_engine(pool, kind, earlier):
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
