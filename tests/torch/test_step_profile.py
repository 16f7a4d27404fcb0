"""Profiles that ``hvd.profile`` records for the planner."""

import time

import pytest
import torch

import horovod.torch as hvd
from horovod.planner import profile
from tests.ranks import on_ranks

WIDTH, ROWS, LAYERS, STEPS = 16, 8, 3, 4


class Sleep(torch.autograd.Function):
    """Identity that takes its time in backward."""

    @staticmethod
    def forward(context, x, seconds):
        context.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        time.sleep(context.seconds)
        return gradient, None


class Slow(torch.nn.Module):
    """Linear layer with a given duration of forward and backward."""

    def __init__(self, forward, backward):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.seconds = forward, backward

    def forward(self, x):
        time.sleep(self.seconds[0])
        return Sleep.apply(self.linear(x), self.seconds[1])


def network(forward=0.002, backward=0.004):
    return torch.nn.Sequential(*(Slow(forward, backward) for _ in range(LAYERS)))


def train(model, optimizer, steps, data=0.003):
    for _ in range(steps):
        time.sleep(data)
        optimizer.zero_grad()
        model(torch.randn(ROWS, WIDTH)).sum().backward()
        optimizer.step()


def test_phases_and_readiness_without_a_job(tmp_path):
    model, path = network(), tmp_path / "profile.json"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    hvd.profile(path, steps=STEPS, named_parameters=model.named_parameters())
    with pytest.raises(ValueError, match="already being recorded"):
        hvd.profile(path)
    train(model, optimizer, 5 + STEPS)
    assert not path.exists()  # the first step has no beginning
    train(model, optimizer, 1)
    found = profile.load(path)
    assert (found.name, found.device, found.batch, found.workers, found.steps) == ("Sequential", "cpu", ROWS, 1, STEPS)
    assert found.seconds.data >= 0.003
    assert found.seconds.forward >= LAYERS * 0.002
    assert found.seconds.backward >= LAYERS * 0.004
    assert found.seconds.optimizer > 0
    order = [gradient.name.split(".")[0] for gradient in found.gradients]
    assert order == ["2", "2", "1", "1", "0", "0"]
    assert found.gradients[0].ready >= 0.004
    assert found.gradients[-1].ready - found.gradients[0].ready >= 2 * 0.004 * 0.9
    assert {gradient.elements for gradient in found.gradients} == {WIDTH, WIDTH * WIDTH}
    train(model, optimizer, 1)  # nothing is recorded any more
    assert profile.load(path) == found


def test_invalid_steps_are_refused(tmp_path):
    with pytest.raises(ValueError, match="`steps` must be at least 1, got 0"):
        hvd.profile(tmp_path / "profile.json", steps=0)


@on_ranks(2)
def test_ranks_differ_although_they_wait_for_each_other(tmp_path):
    model = network(forward=0.002 if hvd.rank() == 0 else 0.03)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
    path = tmp_path / "profile.json"
    hvd.profile(path, steps=STEPS)
    train(model, optimizer, 6 + STEPS)
    hvd.barrier()
    found = profile.load(path)
    assert (found.workers, len(found.gradients)) == (2, 2 * LAYERS)
    assert found.seconds.forward >= LAYERS * 0.016
    assert found.variation.ranks > 0.2


def profiled(steps):
    hvd.init()
    model = network(0, 0)
    train(
        model, hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters()), steps
    )


def test_setting_starts_a_profile(pool, tmp_path):
    path = tmp_path / "profile.json"
    pool(2, initialized=False, HOROVOD_PROFILE=str(path)).run(profiled, 5 + 20 + 1)
    found = profile.load(path)
    assert (found.workers, found.steps) == (2, 20)
    assert {gradient.name for gradient in found.gradients} >= {"0.linear.weight", "2.linear.bias"}
