"""Repeated jobs and optimizers leave nothing behind."""

import gc
import itertools
import time

import pytest
import torch

import horovod.torch as hvd
from horovod.torch.ops import tensors
from horovod.torch.reducer.buckets import Bucket, Slot


def count_remaining(net):
    """Count Horovod's objects, hooks and memory, and all objects."""
    gc.collect()
    objects = gc.get_objects()
    remaining = sum(isinstance(o, Slot | Bucket) for o in objects)
    hooks = sum(len(p._post_accumulate_grad_hooks or ()) for p in net.parameters())
    return remaining, hooks, len(tensors._regions), len(objects)


def has_more(now, before):
    """Return True if any count grew, except that of all objects."""
    return any(count > then for count, then in zip(now[:3], before[:3], strict=True))


def cycles(op):
    """Return what is left after each cycle of init, new optimizer on the same model, shutdown."""
    net = torch.nn.Sequential(torch.nn.Linear(6, 20), torch.nn.Linear(20, 2))
    counts = []
    before = count_remaining(net)  # may include objects of earlier tests in this process
    for _ in range(4):
        hvd.init()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), op=op)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(1, 6)).sum().backward()
            optimizer.step()
        optimizer.zero_grad()
        del optimizer
        hvd.shutdown()
        # Another thread may still hold the object that it worked on last.
        until = time.monotonic() + 20
        while has_more(now := count_remaining(net), before) and time.monotonic() < until:
            time.sleep(0.05)
        counts.append(now)
        if has_more(now, before):
            break
    return before, counts


@pytest.mark.heavy
@pytest.mark.parametrize("op", [hvd.Average, pytest.param(hvd.Adasum, marks=pytest.mark.heavy)])
def test_a_new_optimizer_in_each_job(pool, op):
    for before, counts in pool(2, initialized=False).run(cycles, op):
        assert not any(has_more(count, before) for count in counts), (before, counts)
        # Other objects: each cycle adds this test's own tuple. Occasionally one is created permanently, such
        # as a module imported late on a slow machine, or by leftovers of earlier tests. A leaking optimizer
        # or job adds some hundreds in each cycle.
        objects = [count[3] for count in counts]
        assert min(after - before for before, after in itertools.pairwise(objects[1:])) <= 16, counts
