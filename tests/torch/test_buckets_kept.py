"""Buckets when the program keeps, replaces and moves gradients, or changes its parameters."""

import pytest
import torch

import horovod.torch as hvd
from tests.ranks import on_ranks
from tests.torch.bucketed import backward, buckets, in_buckets, network, step, wrap
from tests.torch.programs import assert_all_equal
from tests.torch.reference import bits


def kept_gradients(keep, replace):
    # A gradient that the program keeps across zero_grad keeps its values, as without buckets.
    net, reference = network(), network()
    optimizer, plain = wrap(net), wrap(reference, gradient_as_bucket_view=False)
    kept, expected = [], []
    for number in range(5):
        for n, o, k in ((net, optimizer, kept), (reference, plain, expected)):
            step(n, o, number)
            k.append(keep(n))
            if replace:
                n[2].bias.grad = torch.ones_like(n[2].bias)
    assert in_buckets(optimizer)
    assert all(torch.equal(a, b) for a, b in zip(kept, expected, strict=True))
    del kept
    # If no gradient is kept, the memory is reused.
    memory = []
    for number in range(5, 8):
        step(net, optimizer, number)
        step(reference, plain, number)
        memory.append([b.flat.data_ptr() for b in buckets(optimizer)])
    assert memory[1] == memory[2]
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), reference.parameters(), strict=True))


KEPT = {
    "a gradient": lambda net: net[0].weight.grad,
    "a part": lambda net: net[2].weight.grad[3:5],
    "a number": lambda net: net[4].bias.grad.view(-1)[1],
}


@pytest.mark.parametrize("kept", KEPT)
def test_gradients_kept_by_the_program(pool, kept):
    for replace in (False, True):
        pool(2).run(kept_gradients, KEPT[kept], replace)


def moved_gradients(move, set_to_none):
    # Changing p.grad in place by these operations removes the view from the bucket.
    net, reference = network(), network()
    optimizer, plain = wrap(net), wrap(reference, gradient_as_bucket_view=False)
    for number in range(3):
        step(net, optimizer, number)
        step(reference, plain, number)
    for number in range(3, 6):
        for n, o in ((net, optimizer), (reference, plain)):
            for i, p in enumerate(n.parameters()):
                move(p, torch.arange(float(p.numel())).view(p.shape) * (hvd.rank() + i))
            o.step()  # with gradients that were not computed by a backward pass
            o.zero_grad(set_to_none=set_to_none)
            backward(n, number)
            o.step()
        for p, q in zip(net.parameters(), reference.parameters(), strict=True):
            assert torch.equal(p.grad, q.grad)
            assert torch.equal(p, q)
            assert hvd.in_shared_memory(p.grad)
    assert len(in_buckets(optimizer)) == 6
    assert_all_equal(net)


MOVES = {
    "data": lambda p, g: setattr(p.grad, "data", g),
    "set": lambda p, g: p.grad.set_(g),
    "strides": lambda p, g: p.grad.t_().copy_(g.t()) if g.dim() == 2 and g.shape[0] == g.shape[1] else p.grad.set_(g),
}


@pytest.mark.parametrize("move", MOVES)
def test_gradients_moved_by_the_program(pool, move):
    for set_to_none in (True, False):
        pool(2).run(moved_gradients, MOVES[move], set_to_none)


@pytest.mark.parametrize(
    ("before", "after", "keep"),
    [
        (torch.float32, torch.float64, False),
        (torch.bfloat16, torch.float32, True),
        (torch.float32, torch.bfloat16, True),
    ],
)
@on_ranks(2)
def test_parameters_that_get_another_dtype(before, after, keep):
    results = []
    for enabled in (False, True):
        net = network(before)
        optimizer = wrap(net, lambda p: torch.optim.SGD(p, lr=0.05), gradient_as_bucket_view=enabled)
        for number in range(3):
            step(net, optimizer, number)
        kept = net[2].weight.grad[3:5] if keep and hvd.rank() == 0 else None
        net.to(after)  # with the existing gradients
        start = [p.detach().clone() for p in net.parameters()]
        for number in range(3, 7):
            step(net, optimizer, number)
            assert all(p.grad.dtype is after for p in net.parameters())
            assert_all_equal(net)
            if number == 3:  # the bucket has been replaced; until then it had the narrower dtype
                with torch.no_grad():
                    for p, value in zip(net.parameters(), start, strict=True):
                        p.copy_(value)
        assert kept is None or kept.dtype is before
        results.append([bits(t).tolist() for p in net.parameters() for t in (p, p.grad)])
    assert results[0] == results[1]
    assert len(in_buckets(optimizer)) == 6
    assert all(bucket.flat.dtype is after for bucket in buckets(optimizer))
