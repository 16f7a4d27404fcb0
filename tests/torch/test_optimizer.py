"""DistributedOptimizer trains as one process on the joined batch would."""

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

import horovod.torch as hvd
from tests.torch.reference import bits

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


def network():
    torch.manual_seed(11)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)
    ).double()


def data(step, n):
    generator = torch.Generator().manual_seed(step)
    rows = 4 * n
    return tuple(torch.randn(rows, width, generator=generator, dtype=torch.float64) for width in (6, 2))


def loss_of(net, x, y):
    return ((net(x) - y) ** 2).mean()


def shard(t):
    rows = t.shape[0] // hvd.size()
    return t[hvd.rank() * rows : (hvd.rank() + 1) * rows]


def assert_close(net, reference, rtol=1e-6):
    for (name, p), q in zip(net.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=rtol, atol=1e-12, msg=lambda m, name=name: f"{name}: {m}")


def digest(net):
    return [bits(p).tolist() for p in net.parameters()]


def train(make, net, steps=12, wrap=True, scheduled="after", **options):
    """Trains on this rank's shards, or without ``wrap`` on the joined batches."""
    optimizer = make(net.parameters())
    schedule = StepLR(optimizer, 3, 0.5) if scheduled == "before" else None
    if wrap:
        names = options.pop("named", True)
        if names:
            options["named_parameters"] = net.named_parameters()
        optimizer = hvd.DistributedOptimizer(optimizer, **options)
    if scheduled == "after":
        schedule = StepLR(optimizer, 3, 0.5)
    for step in range(steps):
        x, y = data(step, hvd.size())
        if wrap:
            x, y = shard(x), shard(y)
        optimizer.zero_grad()
        loss_of(net, x, y).backward()
        optimizer.step()
        schedule.step()
    return optimizer


def gold(kind, options):
    net, reference = network(), network()
    train(OPTIMIZERS[kind], net, **options)
    train(OPTIMIZERS[kind], reference, wrap=False, scheduled=options.get("scheduled", "after"))
    assert_close(net, reference)
    return digest(net)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_equals_one_process_on_the_joined_batch(pool, size, kind):
    results = pool(size).run(gold, kind, {})
    assert all(r == results[0] for r in results), "the ranks' parameters differ in bits"


VARIANTS = {
    "unnamed": {"named": False},
    "scheduler before": {"scheduled": "before"},
    "two groups": {"groups": 2},
    "more groups than parameters": {"groups": 100},
    "predivide": {"gradient_predivide_factor": 2.0},
    "predivide in groups": {"gradient_predivide_factor": 2.0, "groups": 2},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(pool, variant):
    results = pool(2).run(gold, "momentum", VARIANTS[variant])
    assert results[0] == results[1]


def predivides():
    """The gradients of all ranks add up to 1.5 times the largest float32."""
    large = 1.5 * torch.finfo(torch.float32).max / hvd.size()

    def steps(**options):
        weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(weights, lr=1.0), **options)
        for _ in range(2):  # from the second one on in buckets
            optimizer.zero_grad()
            (weights[0] * large + weights[1]).sum().backward()
            optimizer.synchronize()
        return [p.grad.item() for p in weights]

    for options in ({}, {"groups": 1}, {"gradient_as_bucket_view": False}):
        assert steps(**options) == [float("inf"), 1.0], "the test shows nothing"
        torch.testing.assert_close(steps(gradient_predivide_factor=float(hvd.size()), **options), [large, 1.0])


def test_gradients_are_divided_before_they_are_added(pool):
    pool(2).run(predivides)


def test_over_tcp(pool):
    results = pool(3, HOROVOD_TRANSPORT="tcp").run(gold, "adam", {})
    assert all(r == results[0] for r in results)


def sum_equals_average():
    net, reference = network(), network()
    n = hvd.size()
    train(lambda p: torch.optim.SGD(p, lr=0.05 / n), net, op=hvd.Sum)
    train(lambda p: torch.optim.SGD(p, lr=0.05), reference)
    assert_close(net, reference)


def test_sum(pool):
    pool(2).run(sum_equals_average)


def groups_of_lists():
    net, reference = network(), network()
    p = list(net.parameters())
    # Another order on each rank; the one of rank 0 counts. One parameter is in no group.
    lists = [[p[0], p[3]], [p[1], p[2], p[4]]]
    if hvd.rank():
        lists = [list(reversed(group)) for group in reversed(lists)]
    train(OPTIMIZERS["sgd"], net, groups=lists)
    train(OPTIMIZERS["sgd"], reference, wrap=False)
    assert_close(net, reference)


def test_lists_as_groups(pool):
    pool(2).run(groups_of_lists)


def several_passes(set_later, groups):
    n = hvd.size()
    net, reference = network(), network()
    optimizer = OPTIMIZERS["momentum"](net.parameters())
    optimizer = hvd.DistributedOptimizer(
        optimizer, net.named_parameters(), backward_passes_per_step=1 if set_later else 3, groups=groups
    )
    if set_later:
        optimizer.set_backward_passes_per_step(3)
    plain = OPTIMIZERS["momentum"](reference.parameters())
    for step in range(4):
        optimizer.zero_grad()
        plain.zero_grad()
        for i in range(3):
            x, y = data(10 * step + i, n)
            loss_of(net, shard(x), shard(y)).backward()
            loss_of(reference, x, y).backward()
        optimizer.step()
        plain.step()
        assert_close(net, reference)
    # A last step with fewer passes, as at the end of a data set.
    optimizer.zero_grad()
    plain.zero_grad()
    x, y = data(99, n)
    loss_of(net, shard(x), shard(y)).backward()
    loss_of(reference, x, y).backward()
    optimizer.step()
    plain.step()
    assert_close(net, reference)


@pytest.mark.parametrize("set_later", [False, True])
@pytest.mark.parametrize("groups", [None, 2])
def test_backward_passes_per_step(pool, set_later, groups):
    pool(2).run(several_passes, set_later, groups)


def closures():
    n = hvd.size()
    net, reference = network(), network()
    x, y = data(0, n)

    def make_closure(optimizer, net, x, y):
        def closure():
            optimizer.zero_grad()
            loss = loss_of(net, x, y)
            loss.backward()
            return loss

        return closure

    def options():
        return {"lr": 0.5, "max_iter": 5, "history_size": 3}

    optimizer = hvd.DistributedOptimizer(torch.optim.LBFGS(net.parameters(), **options()), net.named_parameters())
    plain = torch.optim.LBFGS(reference.parameters(), **options())
    for _ in range(3):
        loss = optimizer.step(make_closure(optimizer, net, shard(x), shard(y)))
        plain.step(make_closure(plain, reference, x, y))
        assert isinstance(loss, torch.Tensor)
    assert_close(net, reference, rtol=1e-5)
    # SGD with a closure as a keyword, and gradients made before the step.
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    optimizer.step(closure=make_closure(optimizer, net, shard(x), shard(y)))
    plain.step(closure=make_closure(plain, reference, x, y))
    assert_close(net, reference, rtol=1e-5)
    optimizer.zero_grad()
    plain.zero_grad()
    loss_of(net, shard(x), shard(y)).backward()
    loss_of(reference, x, y).backward()
    optimizer.step(lambda: torch.tensor(1.0))
    plain.step(lambda: torch.tensor(1.0))
    assert_close(net, reference, rtol=1e-5)


def test_closures(pool):
    pool(2).run(closures)


def clipping(op):
    n = hvd.size()
    net, reference = network(), network()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](net.parameters()), net.named_parameters(), op=op)
    plain = OPTIMIZERS["sgd"](reference.parameters())
    for step in range(4):
        x, y = data(step, n)
        optimizer.zero_grad()
        plain.zero_grad()
        loss_of(net, shard(x), shard(y)).backward()
        (loss_of(reference, x, y) * (n if op == hvd.Sum else 1)).backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.05)
        with optimizer.skip_synchronize():
            optimizer.step()
        plain.step()
        assert_close(net, reference)


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_clipping(pool, op):
    pool(2).run(clipping, op)


def compressed(kind):
    compression = getattr(hvd.Compression, kind)
    net, reference = network().float(), network().float()
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS["sgd"](net.parameters()), net.named_parameters(), compression=compression
    )
    plain = OPTIMIZERS["sgd"](reference.parameters())
    for step in range(4):
        x, y = (t.float() for t in data(step, hvd.size()))
        optimizer.zero_grad()
        plain.zero_grad()
        loss_of(net, shard(x), shard(y)).backward()
        loss_of(reference, x, y).backward()
        optimizer.step()
        plain.step()
        assert all(p.grad.dtype is torch.float32 for p in net.parameters())
    for p, q in zip(net.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0.02, atol=2e-3)
    return digest(net)


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_compression(pool, kind):
    results = pool(2).run(compressed, kind)
    assert results[0] == results[1]


def channels_last():
    torch.manual_seed(0)
    net = torch.nn.Conv2d(3, 4, 3)
    torch.manual_seed(0)
    reference = torch.nn.Conv2d(3, 4, 3)
    net = net.to(memory_format=torch.channels_last)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    x = torch.randn(2 * hvd.size(), 3, 6, 6, generator=torch.Generator().manual_seed(1))
    net(shard(x).to(memory_format=torch.channels_last)).square().mean().backward()
    reference(x).square().mean().backward()
    optimizer.step()
    plain.step()
    assert_close(net, reference, rtol=1e-4)


def test_channels_last(pool):
    pool(2).run(channels_last)


def submitted_during_backward():
    # With overlap the first gradients are on their way while the backward pass still runs.
    net = network()
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS["sgd"](net.parameters()), net.named_parameters(), gradient_as_bucket_view=False
    )
    busy = []
    net[0].weight.register_hook(lambda g: busy.append(optimizer._hvd.reducer.busy))
    for step in range(2):
        x, y = data(step, hvd.size())
        loss_of(net, shard(x), shard(y)).backward()
        optimizer.step()
    # In the first pass it is not known yet which gradients are computed more than once.
    assert busy == [False, True]


def test_overlap(pool):
    pool(2).run(submitted_during_backward)
