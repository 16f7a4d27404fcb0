"""Buckets when ranks differ: some lack gradients, are new, have joined, or die."""

import pytest
import torch

import horovod.torch as hvd
from tests.ranks import on_ranks
from tests.torch.bucketed import buckets, in_buckets, network, step, wrap
from tests.torch.programs import assert_all_equal
from tests.torch.reference import bits


@pytest.mark.filterwarnings("ignore:optimizer.step.. called without")
@on_ranks(3)
def test_gradients_that_only_some_ranks_have():
    results = []
    for enabled in (False, True):
        torch.manual_seed(0)
        net = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(5))
        optimizer = wrap(net, gradient_as_bucket_view=enabled)
        generator = torch.Generator().manual_seed(7 + hvd.rank())
        shared = torch.Generator().manual_seed(7)
        for number in range(30):
            optimizer.zero_grad(set_to_none=bool(number % 3))
            shared_mask = torch.rand(5, generator=shared) < 0.6 if number > 3 else torch.ones(5, dtype=bool)
            own = shared_mask & (torch.rand(5, generator=generator) < 0.7) if number > 3 else shared_mask
            loss = sum(net[i](torch.ones(2, 3) * (number + hvd.rank())).square().mean() for i in range(5) if own[i])
            if own.any():
                loss.backward()
            if number % 4 == 3:
                optimizer.synchronize()
                # Gradients that a second backward pass does not compute must not be reduced again.
                net[number % 5](torch.ones(1, 3)).sum().backward()
            optimizer.step()
            results.append([[p is not None and bits(p).tolist() for p in (q, q.grad)] for q in net.parameters()])
        assert_all_equal(net)
    assert results[:30] == results[30:]


@on_ranks(2)
def test_buckets_that_always_lack_gradients_are_dropped():
    net = network()
    optimizer = wrap(net)
    for number in range(3):
        step(net, optimizer, number)
    assert len(in_buckets(optimizer)) == 6
    for _ in range(5):  # one more than needed to detect it; after a step alone they share a bucket again
        optimizer.zero_grad()
        net[4](torch.ones(1, 40)).sum().backward()
        optimizer.step()
    assert in_buckets(optimizer) == {"4.weight", "4.bias"}
    step(net, optimizer, 9)
    assert len(in_buckets(optimizer)) == 6
    assert len(buckets(optimizer)) == 2


@on_ranks(2, initialized=False)
def test_a_new_job():
    # A rank that is new in a job has no buckets, so the others discard theirs.
    hvd.init()
    net = network()
    optimizer = wrap(net)
    for number in range(3):
        step(net, optimizer, number)
    assert in_buckets(optimizer)
    hvd.shutdown()
    hvd.init()
    if hvd.rank() == 1:
        weights = net.state_dict()
        net = network()
        net.load_state_dict(weights)
        optimizer = wrap(net)
    hvd.broadcast_optimizer_state(optimizer, 0)
    for number in range(3, 6):
        step(net, optimizer, number)
    assert len(in_buckets(optimizer)) == 6
    assert_all_equal(net)
    hvd.shutdown()


@on_ranks(2)
def test_no_bucket_is_created_while_a_rank_has_joined():
    net = network()
    optimizer = wrap(net)
    for number in range(5 if hvd.rank() == 0 else 0):
        step(net, optimizer, number)
        assert not in_buckets(optimizer)
    hvd.join()
