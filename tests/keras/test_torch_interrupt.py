"""Keras on PyTorch: Ctrl-C while gradients are in flight.

It must end the wait at once, and the memory must stay valid, because the engine still writes to it.
"""

import pytest

from tests.keras.modules import hvd, keras


def interrupted(when):
    import gc
    import os
    import signal
    import threading
    import weakref
    from unittest import mock

    import torch

    import horovod.torch

    class Compression(hvd.Compression.none):
        given = 0

        @staticmethod
        def compress(tensor):
            Compression.given += 1
            if when == "submitting" and rank == 0 and Compression.given == 3:
                raise KeyboardInterrupt
            return tensor, None

    rank = hvd.rank()
    variables = [keras.Variable([0.0] * 50_000) for _ in range(3)]
    grads = [torch.ones(50_000) for _ in variables]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=Compression)
    if rank == 1:
        # The other ranks learn of the first rank's interrupt before its gradients can be reduced.
        assert horovod.torch.allreduce(torch.ones(1), op=hvd.Sum, name="interrupted").item() == 2.0
        count = 3 if when == "waiting" else 2
        optimizer.apply(grads[:count], variables[:count])
        return horovod.torch.allreduce(torch.ones(1), op=hvd.Sum, name="after").item()
    memory = []
    plain = torch.empty_like

    def empty_like(tensor):
        memory.append(weakref.ref(made := plain(tensor)))
        return made

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT])
    try:
        if when == "waiting":
            timer.start()
        with mock.patch.object(torch, "empty_like", empty_like), pytest.raises(KeyboardInterrupt):
            optimizer.apply(grads, variables)
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, before)
    del grads
    gc.collect()
    assert len(memory) == (3 if when == "waiting" else 2)
    assert all(ref() is not None for ref in memory)
    assert horovod.torch.allreduce(torch.ones(1), op=hvd.Sum, name="interrupted").item() == 2.0
    result = horovod.torch.allreduce(torch.ones(1), op=hvd.Sum, name="after").item()
    assert all((ref() == 1.0).all() for ref in memory)
    return result


@pytest.mark.parametrize("when", ["waiting", "submitting"])
def test_ctrl_c_ends_the_wait_and_keeps_the_memory(keras_pool, when):
    assert keras_pool("torch")(2).run(interrupted, when, timeout=60, fresh=True) == [2.0, 2.0]
