"""Backward passes that raise on one or all ranks, and gradients that change at the wrong moment."""

import pytest
import torch

import horovod.torch as hvd
from tests.ranks import on_ranks
from tests.torch.programs import assert_all_equal, batch, loss_of, network, train, wrap


class Raises(torch.autograd.Function):
    """Makes ``count`` backward passes raise."""

    count = 0

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        if Raises.count:
            Raises.count -= 1
            raise LookupError("raised in backward")
        return gradient


def failing_loss(net, x):
    return net[2:](Raises.apply(net[:2](x))).square().mean()


def backward_fails(ranks, passes, buckets, then):
    net = network()
    optimizer = wrap(net, backward_passes_per_step=passes, gradient_as_bucket_view=buckets)

    def step(number):
        optimizer.zero_grad()
        for i in range(passes):
            failing_loss(net, batch(10 * number + i)).backward()
        optimizer.step()

    for number in range(2):
        step(number)
    for number in range(2, 5):
        fails = hvd.rank() in ranks
        Raises.count = int(fails)
        for i in range(passes):
            last = i == passes - 1
            if fails and i == 0:
                error, text = LookupError, "raised in backward"
            elif last:
                error, text = hvd.HorovodInternalError, f"backward.. failed on rank {max(ranks)}"
            else:
                failing_loss(net, batch(10 * number + i)).backward()
                continue
            with pytest.raises(error, match=text):
                failing_loss(net, batch(10 * number + i)).backward()
        then(net, optimizer, fails)
        step(10 + number)
        assert_all_equal(net)
    assert not optimizer._hvd.reducer.busy


def other_collective(net, optimizer, failed):
    # The failed rank next waits for another operation, in which the others take part after their backward
    # pass.
    flag = hvd.allreduce(torch.tensor([float(failed)]), op=hvd.Max)
    assert flag.item() == 1


def take_step(net, optimizer, failed):
    optimizer.step()  # with whichever gradients exist
    hvd.broadcast_parameters(net.state_dict(), 0)


THEN = {
    "go on": lambda net, optimizer, failed: None,
    "zero": lambda net, optimizer, failed: optimizer.zero_grad(),
    "something else": other_collective,
    "step": take_step,
}


@pytest.mark.parametrize("then", THEN)
@pytest.mark.parametrize("buckets", [True, False])
def test_backward_fails_on_one_rank(pool, then, buckets):
    pool(3).run(backward_fails, [1], 1, buckets, THEN[then])


def test_backward_fails_on_all_ranks_and_in_an_earlier_pass(pool):
    pool(2).run(backward_fails, [0, 1], 1, None, THEN["go on"])
    pool(2).run(backward_fails, [0], 3, None, THEN["go on"])
    pool(2).run(backward_fails, [1], 2, None, THEN["zero"])


CHANGES = {
    "halve": lambda p: setattr(p, "grad", p.grad.mul_(0.5)),
    "replace": lambda p: setattr(p, "grad", p.grad / 2),
    "forget": lambda p: setattr(p, "grad", None),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("buckets", [True, False])
@on_ranks(2)
def test_gradients_that_change_while_they_are_reduced(change, buckets):
    net = network()
    optimizer = wrap(net, gradient_as_bucket_view=buckets)
    train(net, optimizer, range(3))
    hook = net[2].weight.register_post_accumulate_grad_hook(CHANGES[change])
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match=r"gradient '2.weight.*' was changed or replaced while it was being reduced"):
        loss_of(net, batch(3)).backward()
    hook.remove()
    train(net, optimizer, [4])
    assert_all_equal(net)


def changed_before():
    # A hook registered before the optimizer was wrapped runs first.
    net = network()
    net[2].weight.register_post_accumulate_grad_hook(CHANGES["halve"])
    optimizer = wrap(net)
    for number in range(3):
        optimizer.zero_grad()
        loss_of(net, batch(number)).backward()
        (want,) = torch.autograd.grad(loss_of(net, batch(number)), net[2].weight)
        torch.testing.assert_close(net[2].weight.grad, hvd.allreduce(want) / 2)
        optimizer.zero_grad()
    # A hook that sets all gradients to None in the middle of backward.
    hook = net[0].weight.register_hook(lambda _: optimizer.zero_grad())
    with pytest.raises((AssertionError, RuntimeError), match="being reduced"):
        loss_of(net, batch(3)).backward()
    hook.remove()
    train(net, optimizer, [4])
    assert_all_equal(net)


def removed_gradients(everywhere, **options):
    # A hook registered earlier takes its step with the rank's local gradient and clears it.
    net, reference = network(), network()
    removed = []

    def take(p):
        removed.append(p.grad.clone())
        p.grad = None

    if everywhere or hvd.rank() == 0:
        net[2].weight.register_post_accumulate_grad_hook(take)
    optimizer = wrap(net, **options)
    for number in range(6):
        optimizer.zero_grad()
        loss_of(net, batch(number)).backward()
        reference.load_state_dict(net.state_dict())
        reference.zero_grad()
        loss_of(reference, batch(number)).backward()
        for (name, p), q in zip(net.named_parameters(), reference.parameters(), strict=True):
            if name != "2.weight":
                torch.testing.assert_close(p.grad, hvd.allreduce(q.grad))
            elif everywhere:
                assert p.grad is None
                assert torch.equal(removed[-1], q.grad)
            else:  # zeros from the rank without a gradient
                torch.testing.assert_close(p.grad, hvd.allreduce(q.grad * (hvd.rank() > 0)))
        optimizer.step()
    assert_all_equal(net)


def test_hooks_of_the_program(pool):
    pool(2).run(changed_before)
    for options in ({}, {"gradient_as_bucket_view": False}, {"groups": 2}):
        for everywhere in (True, False):
            pool(2).run(removed_gradients, everywhere, **options)
