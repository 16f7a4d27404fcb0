"""Cost of a repeated step: engine operations, and the number of Python calls."""

import sys
from unittest import mock

import torch

import horovod.torch as hvd
from horovod.common import frontends
from horovod.torch.ops import repeats
from tests.ranks import on_ranks

LAYERS = 40


def network():
    torch.manual_seed(3)
    return torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(LAYERS)])


def step(net, optimizer):
    optimizer.zero_grad()
    net(torch.ones(2, 8)).sum().backward()
    optimizer.step()


def settled(freeze=0, unused=0, **options):
    """Return a network and its optimizer after enough equal steps; the first layers are frozen, others never used."""
    net = network()
    net[:freeze].requires_grad_(False)
    unused_layers = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(unused)])
    parameters = {**dict(net.named_parameters()), **{f"unused.{n}": p for n, p in unused_layers.named_parameters()}}
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters.values(), lr=1e-3), parameters.items(), **options)
    for _ in range(40):
        step(net, optimizer)
    return net, optimizer


def of_the_engine(net, optimizer, steps=5):
    """Return (operations of a step, names of those whose requests were built again)."""
    frontend = frontends.TORCH
    built, plain = [], frontend.submit
    before = frontend.engine.stats()["operations"]
    frontend.submit = lambda *a, **k: (built.append(a[1]), plain(*a, **k))[1]
    try:
        for _ in range(steps):
            step(net, optimizer)
    finally:
        frontend.submit = plain
    return (frontend.engine.stats()["operations"] - before) / steps, built


@on_ranks(2)
def test_gradients_and_votes_are_submitted_again():
    for options in (
        {},
        {"gradient_as_bucket_view": False},
        {"op": hvd.Sum},
        {"compression": hvd.Compression.wire_bf16},
        {"groups": 2},
    ):
        _, built = of_the_engine(*settled(**options))
        assert not built, (options, built)


def calls_of(backward):
    """Return the number of function calls in a backward pass, including C functions."""
    calls = 0

    def count(_, event, __):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        backward()
    finally:
        sys.setprofile(None)
    return calls


def calls(net, optimizer):
    optimizer.zero_grad()
    count = calls_of(net(torch.ones(2, 8)).sum().backward)
    optimizer.step()
    return count


@on_ranks(2)
@mock.patch.object(repeats, "settle", lambda _: False)  # noqa: PT008  (a mock would be passed as an argument)
def test_frozen_and_unused_parameters_do_not_slow_a_step():
    for bucket_views in (None, False):
        usual = settled(freeze=LAYERS // 2, gradient_as_bucket_view=bucket_views)
        operations, _ = of_the_engine(*usual)
        some = calls(*usual)
        for options in ({"freeze": LAYERS // 2, "unused": 20}, {"freeze": LAYERS // 2, "unused": 60}):
            net, optimizer = settled(gradient_as_bucket_view=bucket_views, **options)
            assert of_the_engine(net, optimizer) == (operations, [])
            assert calls(net, optimizer) == some
            assert all(p.grad is None for p in net[: LAYERS // 2].parameters())


def calls_of_gradients():
    return calls(*settled()) / (2 * LAYERS)


def test_calls_for_each_gradient(pool):
    assert max(pool(2).run(calls_of_gradients)) < 6.4
