"""No step uses a gradient that was not reduced, however the program computed it."""

import warnings

import pytest
import torch

import horovod.torch as hvd
from tests.ranks import on_ranks
from tests.torch.programs import (
    BUCKET_VIEWS,
    OPTIMIZERS,
    Twins,
    assert_all_equal,
    batch,
    loss_of,
    network,
    train,
    votes,
    wrap,
)


@pytest.mark.parametrize("hooks_first", [True, False])
@pytest.mark.parametrize("buckets", BUCKET_VIEWS)
@on_ranks(2)
def test_steps_in_hooks(buckets, hooks_first):
    """A step for each parameter as soon as its gradient exists, to save gradient memory."""
    twins = Twins()
    net, optimizers = network(), {}
    twins.net = net

    def step(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    def register():
        for p in net.parameters():
            p.register_post_accumulate_grad_hook(step)

    if hooks_first:
        register()
    for name, p in net.named_parameters():
        optimizers[p] = hvd.DistributedOptimizer(OPTIMIZERS["sgd"]([p]), [(name, p)], gradient_as_bucket_view=buckets)
    if not hooks_first:
        register()
    for number in range(5):
        twins.backward(number)
        twins.plain.step()
        twins.plain.zero_grad()
        twins.compare()
    assert_all_equal(net)


def appended(optimizer, more):
    optimizer.param_groups[0]["params"].append(more)


def in_place_of_another(optimizer, more):
    optimizer.param_groups[0]["params"][-1] = more


WAYS = [appended, in_place_of_another]  # test_parameter_names.py covers more


def surgery(method, buckets, op, when):
    """Replace a parameter by hand, as when a layer is replaced."""
    twins = Twins(gradient_as_bucket_view=buckets, op=op)
    both = ((twins.net, twins.optimizer), (twins.twin, twins.plain))
    for number in range(6):
        twins.zero_grad()
        if number == 2 and when == "before backward":
            for net, optimizer in both:
                net[4].bias = torch.nn.Parameter(net[4].bias.detach() + 1.0)
                method(optimizer, net[4].bias)
        if number == 2 and when == "before step":
            for net, _ in both:
                net[4].bias = torch.nn.Parameter(net[4].bias.detach().clone())
            twins.backward(number)
            for net, optimizer in both:
                method(optimizer, net[4].bias)
        else:
            twins.backward(number)
            twins.clip(0.1)
        twins.step()
    assert_all_equal(twins.net)


@pytest.mark.parametrize("when", ["before backward", "before step"])
@pytest.mark.parametrize("method", WAYS)
def test_parameters_added_to_groups_manually(pool, method, when):
    for buckets in BUCKET_VIEWS:
        pool(2).run(surgery, method, buckets, hvd.Average, when)
    pool(2).run(surgery, method, None, hvd.Sum, when)


class _SetsGradient(torch.autograd.Function):
    """An autograd function that sets a parameter's gradient itself, as kernels do that accumulate in place."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x)
        ctx.weight = weight
        return x @ weight.detach().t()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        gradients = gradient.t() @ x
        weight = ctx.weight
        weight.grad = gradients if weight.grad is None else weight.grad + gradients
        return gradient @ weight.detach(), None


def by_autograd_grad(net, x):
    last = list(net[4].parameters())
    gradients = torch.autograd.grad(loss_of(net, x), last)
    for p in last:
        p.requires_grad_(False)
    loss_of(net, x).backward()
    for p, grad in zip(last, gradients, strict=True):
        p.requires_grad_(True).grad = grad


def by_a_function(net, x):
    hidden = net[1](net[0](x))
    hidden = net[3](_SetsGradient.apply(hidden, net[2].weight) + net[2].bias)
    net[4](hidden).square().mean().backward()


def of_a_frozen_parameter(net, x):
    gradients = torch.autograd.grad(loss_of(net, x), [net[0].bias])[0]
    net[0].bias.requires_grad_(False)
    loss_of(net, x).backward()
    net[0].bias.grad = gradients
    net[0].bias.requires_grad_(True)


def hidden_and_restored(net, x):
    """Accumulate gradients elsewhere in a hook that runs first, and restore them before the step."""
    weight, sums = net[2].weight, {}

    def take(p):
        sums[p] = p.grad
        p.grad = None

    hooks = dict(weight._post_accumulate_grad_hooks)
    weight._post_accumulate_grad_hooks.clear()
    hook = weight.register_post_accumulate_grad_hook(take)
    weight._post_accumulate_grad_hooks.update(hooks)
    loss_of(net, x).backward()
    hook.remove()
    for p, grad in sums.items():
        p.grad = grad


def set_manually(method, buckets, op, first):
    twins = Twins(gradient_as_bucket_view=buckets, op=op)
    for number in range(6):
        twins.zero_grad()
        if number < first:
            loss_of(twins.net, batch(number)).backward()
        else:
            method(twins.net, batch(number))
        twins.twin_backward(number)
        twins.step()
    assert_all_equal(twins.net)


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("method", [by_autograd_grad, by_a_function, of_a_frozen_parameter, hidden_and_restored])
def test_gradients_without_hooks(pool, method, first):
    for buckets in BUCKET_VIEWS:
        pool(2).run(set_manually, method, buckets, hvd.Average, first)
    pool(2).run(set_manually, method, None, hvd.Sum, first)


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
@pytest.mark.parametrize("buckets", BUCKET_VIEWS)
@on_ranks(2)
def test_gradients_of_earlier_steps_stay(buckets, op):
    """Gradients reduced in an earlier step are not reduced again, although they still exist."""
    net = network()
    optimizer = wrap(net, gradient_as_bucket_view=buckets, op=op)
    rounds = votes(optimizer)
    scale = hvd.size() if op == hvd.Sum else 1
    for number in range(12):
        optimizer.zero_grad(set_to_none=False)
        before = [None if p.grad is None else p.grad.clone() for p in net[4].parameters()]
        (net[:4](batch(number)).square().mean() if number % 2 else loss_of(net, batch(number))).backward()
        for p, grad in zip(net[4].parameters(), before, strict=True):
            if number % 2:
                assert torch.equal(p.grad, grad)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1 * scale)
        optimizer.step()
        assert len(rounds) == number + 1
    assert_all_equal(net)
    # The same holds for a gradient that the program puts in place of a reduced one.
    optimizer.zero_grad()
    loss_of(net, batch(99)).backward()
    want = [p.grad / 3 for p in net.parameters()]
    for p, grad in zip(net.parameters(), want, strict=True):
        p.grad = grad.clone()
    optimizer.step(lambda: None)
    assert all(torch.equal(p.grad, grad) for p, grad in zip(net.parameters(), want, strict=True))


@on_ranks(2)
def test_gradients_set_on_only_one_rank_are_named():
    net = network()
    optimizer = wrap(net)
    optimizer.zero_grad()
    net[:4](batch(0)).square().mean().backward()
    if hvd.rank() == 0:
        net[4].bias.grad = torch.ones(1, dtype=torch.float64)
    match = r"numbers of backward passes.*no backward pass has produced.*'4.bias" if hvd.rank() == 0 else "numbers of"

    def go_on():
        optimizer.step()
        optimizer.zero_grad()
        loss_of(net, batch(1)).backward()

    with pytest.raises(hvd.HorovodInternalError, match=match):
        go_on()
    hvd.broadcast_parameters(net.state_dict(), 0)
    train(net, optimizer, [1])
    assert_all_equal(net)


@on_ranks(2, initialized=False)
def test_gradients_set_by_step_hooks_are_named():
    """No reduction can have seen them."""
    hvd.init()
    net = network()
    optimizer = wrap(net)
    last = net[-1].weight
    last.requires_grad_(False)
    optimizer.register_step_pre_hook(lambda *_: setattr(last, "grad", torch.ones_like(last)))
    train(net, optimizer, range(1))
    with pytest.warns(UserWarning, match=r"uses gradients that were not reduced: .*4\.weight.*hooks"):
        train(net, optimizer, range(1, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(net, optimizer, range(2, 25))
    hvd.shutdown()
