"""DistributedOptimizer trains like one process on the combined batch."""

import pytest
import torch

import horovod.torch as hvd
from tests.ranks import on_ranks
from tests.torch.programs import OPTIMIZERS, Twins, assert_all_equal, batch, loss_of, train

VARIANTS = {
    "sgd": {},
    "momentum": {},
    "adam": {},
    "sum": {"op": hvd.Sum},
    "groups": {"groups": 2},
    "more groups than parameters": {"groups": 100},
    "predivide": {"gradient_predivide_factor": 2.0},
    "predivide in groups": {"gradient_predivide_factor": 2.0, "groups": 2},
}


@pytest.mark.parametrize("variant", VARIANTS)
@on_ranks(3)
def test_equals_one_process_on_the_joined_batch(variant):
    twins = Twins(OPTIMIZERS.get(variant, OPTIMIZERS["sgd"]), **VARIANTS[variant])
    twins.train(range(8))
    assert_all_equal(twins.net)


@on_ranks(2)
def test_parameters_without_names():
    twins = Twins()
    twins.optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](twins.net.parameters()))
    twins.train(range(3))


@on_ranks(2)
def test_gradients_are_divided_before_they_are_added():
    """The sum of all ranks' gradients is 1.5 times the largest float32."""
    large = 1.5 * torch.finfo(torch.float32).max / hvd.size()

    def steps(**options):
        weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(weights, lr=1.0), **options)
        for _ in range(2):  # in buckets from the second step on
            optimizer.zero_grad()
            (weights[0] * large + weights[1]).sum().backward()
            optimizer.synchronize()
        return [p.grad.item() for p in weights]

    for options in ({}, {"groups": 1}, {"gradient_as_bucket_view": False}):
        assert steps(**options) == [float("inf"), 1.0], "the test shows nothing"
        torch.testing.assert_close(steps(gradient_predivide_factor=float(hvd.size()), **options), [large, 1.0])


@on_ranks(2)
def test_closures():
    twins = Twins()

    def joined():
        twins.plain.zero_grad()
        twins.twin_backward(0)

    def closure():
        twins.optimizer.zero_grad()
        loss = loss_of(twins.net, batch(0))
        loss.backward()
        return loss

    twins.optimizer.step(closure=closure)
    twins.plain.step(closure=joined)
    twins.compare()
    # Gradients computed before the step.
    twins.zero_grad()
    twins.backward(1)
    twins.optimizer.step(lambda: torch.tensor(1.0))
    twins.plain.step()
    twins.compare()


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
@on_ranks(2)
def test_clipping_after_synchronize(op):
    twins = Twins(op=op)
    for number in range(4):
        twins.zero_grad()
        twins.backward(number)
        twins.optimizer.synchronize()
        twins.clip()
        with twins.optimizer.skip_synchronize():
            twins.step()


@on_ranks(2)
def test_overlap():
    # With overlap the first gradients are sent while the backward pass still runs.
    twins = Twins(gradient_as_bucket_view=False)
    busy = []
    twins.net[0].weight.register_hook(lambda g: busy.append(twins.optimizer._hvd.reducer.busy))
    train(twins.net, twins.optimizer, range(2))
    # The first pass cannot know yet which gradients are computed more than once.
    assert busy == [False, True]


@pytest.mark.parametrize("view", [None, False])
@on_ranks(2)
def test_gradients_that_share_one_tensor(view):
    def joined(net, x):
        return sum((torch.cat([p.flatten() for p in net.parameters()]) * row.sum()).square().sum() for row in x)

    twins = Twins(backward_passes_per_step=2, gradient_as_bucket_view=view)
    for number in range(0, 6, 2):
        twins.zero_grad()
        for micro in range(2):
            twins.backward(number + micro, lambda net, x: joined(net, x) / 1000)
        twins.step()
