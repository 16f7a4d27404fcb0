"""Jobs and optimizers that come and go leave nothing behind."""

import gc
import itertools

import torch

import horovod.torch as hvd
from horovod.torch import shared
from horovod.torch.buckets import Bucket, Slot


def cycles(op):
    """By cycle of init, new optimizer on the same model, shutdown: what there is of our objects, hooks and memory."""
    net = torch.nn.Sequential(torch.nn.Linear(6, 20), torch.nn.Linear(20, 2))
    counts = []
    for _ in range(6):
        hvd.init()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), op=op)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(1, 6)).sum().backward()
            optimizer.step()
        optimizer.zero_grad()
        del optimizer
        hvd.shutdown()
        gc.collect()
        ours = sum(isinstance(o, Slot | Bucket) for o in gc.get_objects())
        hooks = [len(p._post_accumulate_grad_hooks or ()) for p in net.parameters()]
        counts.append((ours, hooks, len(shared._regions), len(gc.get_objects())))
    return counts


def test_a_new_optimizer_in_each_job(pool):
    for op in (hvd.Average, hvd.Adasum):
        for counts in pool(2, initialized=False).run(cycles, op):
            ours, hooks, regions, objects = zip(*counts, strict=True)
            # In the first cycle there may be some of earlier tests of this process.
            assert set(ours[1:]) == {ours[1]}, counts
            assert ours[1] <= ours[0], counts
            assert set(map(tuple, hooks)) == {(0, 0, 0, 0)}, counts
            assert set(regions) == {regions[0]}, counts
            # Of others: the tuple and the list of this test in each cycle. Once in a while something is made for good,
            # as a module that is first needed on a slow machine, and what earlier tests of this process have left may
            # add one of its own; an optimizer or a job that leaks does so in each, and is some hundreds.
            assert min(after - before for before, after in itertools.pairwise(objects[1:])) <= 16, counts
