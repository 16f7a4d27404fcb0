"""op=Adasum: collectives and the optimizer, compared with the definition in double precision."""

import warnings

import pytest
import torch

import horovod.torch as hvd
from tests.ranks import on_ranks
from tests.torch.programs import OPTIMIZERS, assert_all_equal, batch, network
from tests.torch.reference import FLOATS, same_bits


def value(rank, dtype, shape, seed=0):
    generator = torch.Generator().manual_seed(1000 * seed + 10 * rank + len(shape))
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(dtype)


def pair(a, b):
    ab, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
    if aa == 0 or bb == 0:
        return a + b
    return (1 - ab / (2 * aa)) * a + (1 - ab / (2 * bb)) * b


def adasum(tensors):
    """Compute Adasum by its definition: first of neighbours, then of neighbouring results."""
    partial = [t.double() for t in tensors]
    while len(partial) > 1:
        partial = [pair(partial[i], partial[i + 1]) for i in range(0, len(partial), 2)]
    return partial[0].to(tensors[0].dtype)


def close(actual, expected):
    assert actual.dtype is expected.dtype
    torch.testing.assert_close(actual, expected, rtol=2e-2 if actual.dtype is torch.bfloat16 else 2e-3, atol=1e-3)


@on_ranks(2)
def test_allreduce_in_all_forms():
    n = hvd.size()
    for dtype in FLOATS:
        tensors = [value(r, dtype, (3, 5)) for r in range(n)]
        own, want = tensors[hvd.rank()], adasum(tensors)
        out = hvd.allreduce(own, op=hvd.Adasum, name=f"{dtype}")
        close(out, want)
        assert same_bits(hvd.allreduce_(own.clone(), op=hvd.Adasum, name=f"{dtype}"), out)
        assert same_bits(hvd.synchronize(hvd.allreduce_async(own, op=hvd.Adasum, name=f"{dtype}")), out)
        close(hvd.allreduce(own, op=hvd.Adasum, prescale_factor=2.0, postscale_factor=0.25), want / 2)
        # A grouped tensor has the same bits as one reduced alone.
        for member in hvd.grouped_allreduce([own, own], op=hvd.Adasum):
            assert same_bits(member, out)


@pytest.mark.heavy
@pytest.mark.parametrize(("kind", "passes", "groups"), [("momentum", 1, None), ("adam", 2, 2)])
@on_ranks(4)
def test_optimizer_combines_updates_of_steps(kind, passes, groups):
    """Compare with plain optimizers, one for each rank, whose updates are combined here."""
    n = hvd.size()
    net, copies = network(), [network() for _ in range(n)]
    plain = [OPTIMIZERS[kind](c.parameters()) for c in copies]
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS[kind](net.parameters()),
        net.named_parameters(),
        op=hvd.Adasum,
        groups=groups,
        backward_passes_per_step=passes,
    )
    for step in range(4):
        starts = [p.detach().clone() for p in net.parameters()]
        for rank, (model, one) in enumerate([(net, optimizer), *zip(copies, plain, strict=True)], -1):
            one.zero_grad()
            for k in range(passes):
                model(batch(10 * step + k, hvd.rank() if rank < 0 else rank)).square().sum().backward()
            one.step()
        for i, p in enumerate(net.parameters()):
            moves = [list(c.parameters())[i].detach() - starts[i] for c in copies]
            torch.testing.assert_close(p.detach(), starts[i] + adasum(moves), rtol=1e-9, atol=1e-12)
        for c in copies:
            c.load_state_dict(net.state_dict())
    assert_all_equal(net)


@on_ranks(2)
def test_corners_of_the_optimizer():
    net = network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1),
        net.named_parameters(),
        op=hvd.Adasum,
        compression=hvd.Compression.fp16,
    )
    with pytest.raises(AssertionError, match="Adasum"):
        optimizer.skip_synchronize()
    net(batch(0, 0)).sum().backward()
    with pytest.raises(AssertionError, match="backward_passes_per_step=1"):
        net(batch(0, 0)).sum().backward()
    optimizer.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.synchronize()  # has no effect
        optimizer.step()
    # If one rank lacks a gradient, its parameter is still updated; if all ranks do, it stays unchanged.
    before = [p.detach().clone() for p in net.parameters()]
    optimizer.zero_grad()
    if hvd.rank() == 0:
        net[2].weight.grad = torch.ones_like(net[2].weight)
    optimizer.step()
    torch.testing.assert_close(net[2].weight.detach(), before[2] - 0.1, rtol=1e-3, atol=1e-3)
    assert torch.equal(net[0].weight.detach(), before[0])

    # With a closure, with other layouts, and with parameters added later.
    conv = torch.nn.Conv2d(2, 2, 3).to(memory_format=torch.channels_last)
    optimizer.add_param_group({"params": list(conv.parameters())})
    start = conv.weight.detach().clone()

    def closure():
        optimizer.zero_grad()
        loss = conv(torch.ones(1, 2, 3, 3)).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) is not None
    torch.testing.assert_close(conv.weight.detach(), start - 0.1, rtol=1e-3, atol=1e-3)
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.set_backward_passes_per_step(2)
    for _ in range(2):
        net(batch(1, 0)).sum().backward()
    optimizer.step()
    assert_all_equal(net)


class RaisesHalfway(torch.optim.SGD):
    """An optimizer that raises after it has changed the parameters."""

    armed = True

    def step(self, closure=None):
        loss = super().step(closure)
        if self.armed:
            raise ArithmeticError("raised by the plain step")
        return loss


@on_ranks(2)
def test_a_failing_plain_step_leaves_parameters_unchanged():
    net = network()
    names = {f"raising.{name}": p for name, p in net.named_parameters()}
    plain = RaisesHalfway(net.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(plain, names.items(), op=hvd.Adasum)
    before = [p.detach().clone() for p in net.parameters()]

    def closure():
        net(batch(0)).sum().backward()
        raise LookupError("raised by the closure")

    net(batch(0)).sum().backward()
    with pytest.raises(ArithmeticError, match="plain step"):
        optimizer.step()
    assert all(torch.equal(p.detach(), b) for p, b in zip(net.parameters(), before, strict=True))
    with pytest.raises(LookupError, match="closure"):
        optimizer.step(closure)
    assert all(torch.equal(p.detach(), b) for p, b in zip(net.parameters(), before, strict=True))
    optimizer.armed = False
    optimizer.zero_grad()
    net(batch(0)).sum().backward()  # would be one pass too many if the earlier ones still counted
    optimizer.step()
    assert not all(torch.equal(p.detach(), b) for p, b in zip(net.parameters(), before, strict=True))
    assert_all_equal(net)
