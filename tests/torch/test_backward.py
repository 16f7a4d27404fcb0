"""Gradients are reduced when backward() returns."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import horovod.torch as hvd
from tests.ranks import on_ranks
from tests.torch.programs import OPTIMIZERS, Twins, assert_all_equal, batch, loss_of, loss_of_all, network, votes, wrap

ACCUMULATED = {
    "average": (hvd.Average, True),
    "sum": (hvd.Sum, True),
    "sum apart": (hvd.Sum, False),
    "max": (hvd.Max, True),
    "min": (hvd.Min, False),
}


def several_backward_calls(op, buckets, groups):
    # Two losses over parts of the model, both repeated without zero_grad: each call adds its own reduction.
    net = network()
    optimizer = wrap(net, op=op, gradient_as_bucket_view=buckets, groups=groups)
    halves = [lambda x: net(x).square().mean(), lambda x: net[2](x.repeat(1, 2)[:, :8]).sum()]
    parameters = list(net.parameters())
    for number in range(5):
        expected = [None] * 6
        optimizer.zero_grad(set_to_none=number % 2 == 0)
        if number % 2:
            expected = [torch.zeros_like(p) for p in parameters]
        for i in range(4):
            x = batch(10 * number + i)
            for k, grad in enumerate(torch.autograd.grad(halves[i % 2](x), parameters, allow_unused=True)):
                if grad is not None:
                    reduced = hvd.allreduce(grad, op=op)
                    expected[k] = reduced if expected[k] is None else expected[k] + reduced
            halves[i % 2](x).backward()
            for p, want in zip(parameters, expected, strict=True):
                assert (p.grad is None) == (want is None)
                if want is not None:
                    torch.testing.assert_close(p.grad, want, rtol=1e-9, atol=1e-12)
        optimizer.step()
    assert_all_equal(net)


@pytest.mark.parametrize("kind", ACCUMULATED)
def test_several_backward_calls_in_a_step(pool, kind):
    for groups in (None, 2):
        pool(3).run(several_backward_calls, *ACCUMULATED[kind], groups)


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
@on_ranks(2)
def test_sparse_gradients_accumulate(op):
    table = torch.nn.Embedding(6, 2, sparse=True)
    torch.nn.init.zeros_(table.weight)
    optimizer = wrap(table, op=op)
    n = hvd.size()
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(3):
            table(torch.tensor([hvd.rank(), 5])).sum().backward()
        want = torch.zeros(6, 2)
        want[:n] += 3
        want[5] += 3 * n
        torch.testing.assert_close(table.weight.grad.to_dense(), want / (n if op == hvd.Average else 1))
        optimizer.step()


def no_backward():
    # Ranks without a backward pass in a step meet ranks with several of them.
    net = network()
    optimizer = wrap(net, op=hvd.Sum)
    rounds = votes(optimizer)
    for number in range(16):
        optimizer.zero_grad(set_to_none=number % 2 == 0)
        before = [p.detach().clone() for p in net.parameters()]
        busy = [r for r in range(hvd.size()) if (number + r) % 3 or number == 6]
        calls = 2 if number == 6 or number in (8, 11, 12) else 1
        want = [torch.zeros_like(p) for p in net.parameters()]
        for r in busy:
            for i in range(calls):
                grads = torch.autograd.grad(loss_of(net, batch(10 * number + i, r)), list(net.parameters()))
                want = [w + g for w, g in zip(want, grads, strict=True)]
        rounds.clear()
        if hvd.rank() in busy:
            for i in range(calls):
                loss_of(net, batch(10 * number + i)).backward()
        optimizer.step()
        for p, w, b in zip(net.parameters(), want, before, strict=True):
            torch.testing.assert_close(p.detach(), b - 0.1 * w, rtol=1e-9, atol=1e-12)
        # A step had two rounds, so ranks without a backward pass must learn that no pass will come.
        expected = number > 6 and calls == 1 and len(busy) < hvd.size()
        assert len(rounds) == calls + expected, number
    assert_all_equal(net)


def test_ranks_without_a_backward_pass(pool):
    pool(2).run(no_backward)
    pool(3).run(no_backward)


@pytest.mark.parametrize(("set_later", "groups"), [(False, None), (True, 2)])
@on_ranks(2)
def test_backward_passes_per_step(set_later, groups):
    # More passes than configured, and a last step with fewer.
    twins = Twins(OPTIMIZERS["momentum"], backward_passes_per_step=1 if set_later else 2, groups=groups)
    if set_later:
        twins.optimizer.set_backward_passes_per_step(2)
    rounds = votes(twins.optimizer)
    for number, calls in enumerate((2, 2, 4, 3, 1, 2)):
        twins.zero_grad()
        rounds.clear()
        for i in range(calls):
            twins.backward(10 * number + i)
        if calls % 2 == 0:
            twins.clip()
        twins.step()
        assert len(rounds) == (calls + 1) // 2
    assert_all_equal(twins.net)


def penalty(net, x):  # uses a gradient within the loss
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    return net(x).square().mean() + (slope.norm(dim=1) - 1).square().mean()


def recomputed(net, x):
    x = x.clone().requires_grad_()
    for layer in net:
        x = checkpoint(layer, x, use_reentrant=True)
    return x.square().mean()


def recomputed_in_part(net, x):
    return net[2:](checkpoint(net[:2], x, use_reentrant=False)).square().mean()


def nested(net, x):
    def outer(x):
        return net[2:](checkpoint(net[:2], x, use_reentrant=True))

    return checkpoint(outer, x.clone().requires_grad_(), use_reentrant=True).square().mean()


def shared(net, x):  # a layer that is recomputed twice: its gradient is computed twice in one pass
    x = net[0](x)
    for _ in range(2):
        x = checkpoint(net[2], x, use_reentrant=True)
    return net[4](x).square().mean()


def inner(net, x):  # computes a gradient in the forward pass
    hidden = net[:2](x)
    step = torch.autograd.grad(net[2:](hidden).sum(), hidden)[0]
    return net[2:](hidden - step).square().mean()


@pytest.mark.filterwarnings("ignore")
@on_ranks(2)
def test_checkpoints_and_gradients_of_gradients():
    twins = Twins()
    rounds = votes(twins.optimizer)
    losses = (shared, loss_of, penalty, recomputed, recomputed_in_part, nested, shared, inner, recomputed)
    for number in range(2 * len(losses)):
        loss = losses[number // 2]
        rounds.clear()
        twins.zero_grad()
        twins.backward(number, loss)
        assert len(rounds) == 1, loss
        twins.clip()
        twins.step()
    # The same graph twice, and a graph of the gradients.
    for create_graph in (False, True):
        twins.zero_grad()
        for net, value in ((twins.net, loss_of(twins.net, batch(50))), (twins.twin, loss_of_all(twins.twin, 50))):
            value.backward(retain_graph=True, create_graph=create_graph)
            value.backward(retain_graph=True)
            for p in net.parameters():
                p.grad = p.grad.detach()
        twins.compare()
    assert_all_equal(twins.net)


@pytest.mark.heavy  # test_compiled.py has one compiled step in the first tier
@pytest.mark.parametrize("autograd", [False, True])
@on_ranks(2)
def test_compiled_models(autograd):
    twins = Twins()
    model = torch.compile(twins.net, backend="aot_eager")
    for number in range(4):
        twins.zero_grad()
        if autograd:
            from torch._dynamo import compiled_autograd

            with compiled_autograd._enable(torch.compile(backend="eager")):
                loss_of(model, batch(number)).backward()
            twins.optimizer.synchronize()  # Horovod cannot see the end of such a backward pass
        else:
            loss_of(model, batch(number)).backward()
        twins.twin_backward(number)
        twins.clip()
        with twins.optimizer.skip_synchronize():
            twins.step()
    assert_all_equal(twins.net)


@pytest.mark.parametrize("options", [{}, {"op": hvd.Sum}, {"op": hvd.Sum, "gradient_as_bucket_view": True}])
@on_ranks(2)
def test_discarded_passes(options):
    """After one pass of two, zero_grad(): the next two passes form a step, without the discarded gradients."""
    twins = Twins(backward_passes_per_step=2, **options)
    for number in range(6):
        if number % 2:
            # The gradients of the last step still exist, and are set aside because results are added to
            # p.grad.
            loss_of(twins.net, batch(number)).backward()
        twins.zero_grad(set_to_none=number % 3 == 0)
        for i in range(2):
            twins.backward(10 + number + i)
        twins.clip()
        twins.step()
    assert_all_equal(twins.net)
