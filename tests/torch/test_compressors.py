"""Each compressor through each public function that takes one."""

import pytest
import torch

import horovod.torch as hvd
from tests.ranks import on_ranks
from tests.torch.programs import network


class Halves:
    """A user-defined compressor that halves values and keeps the data to undo it."""

    @staticmethod
    def compress(tensor):
        return tensor / 2, 2.0

    @staticmethod
    def decompress(tensor, context):
        return tensor * context


# By name: the largest relative rounding error; for int8, relative to the largest of 256 neighbours.
ROUNDING = {
    "none": 0.0,
    "fp16": 2.0**-11,
    "bf16": 2.0**-8,
    "wire_fp16": 2.0**-11,
    "wire_bf16": 2.0**-8,
    "wire_int8": 1 / 254,
}


def compressor(name):
    return Halves if name == "user" else getattr(hvd.Compression, name)


def noise(rank, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank)).clamp(-3, 3)


def noise_of_all(*shape):
    return torch.stack([noise(r, *shape) for r in range(hvd.size())])


def near(name, got, want, roundings=4):
    allowed = roundings * ROUNDING.get(name, 2.0**-22) * max(3.0, float(want.abs().max())) * hvd.size() + 1e-6
    assert got.dtype is torch.float32, name
    assert got.shape == want.shape, name
    assert float((got - want).abs().max()) <= allowed, name


def through_collectives(name):
    compression = compressor(name)
    own, mean = noise(hvd.rank(), 6, 5), noise_of_all(6, 5).mean(0)
    kept = own.clone()
    near(name, hvd.allreduce(own, name="a", compression=compression), mean)
    near(name, hvd.allreduce(own, op=hvd.Sum, compression=compression), mean * hvd.size())
    for got in hvd.grouped_allreduce([own, own.t().contiguous()], name="g", compression=compression):
        near(name, got if got.shape == mean.shape else got.t(), mean)
    x = own.clone().requires_grad_()
    (hvd.allreduce(x, name="d", compression=compression) * 3).sum().backward()
    near(name, x.grad, torch.full_like(mean, 3.0))
    assert torch.equal(own, kept)  # inputs are unchanged

    rows = 6 // hvd.size()
    part = slice(hvd.rank() * rows, (hvd.rank() + 1) * rows)
    scatters = (
        lambda: hvd.reducescatter(own, name="r", compression=compression),
        lambda: hvd.grouped_reducescatter([own], name="s", compression=compression)[0],
    )
    for scatter in scatters:
        if name.startswith("wire"):
            with pytest.raises(
                ValueError,
                match=r"reducescatter: compression must be .*, got Wire\w+Compressor, which works with allreduce only",
            ):
                scatter()
        else:
            near(name, scatter(), mean[part])


def through_the_optimizer(name):
    compression = compressor(name)
    options = [
        {},
        {"gradient_as_bucket_view": True},
        {"gradient_as_bucket_view": False},
        {"groups": 2},
        {"backward_passes_per_step": 2},
        {"gradient_predivide_factor": 2.0},
        {"op": hvd.Sum},
    ]
    for option in options:
        net, passes = network(dtype=torch.float32), option.get("backward_passes_per_step", 1)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), lr=0.0), net.named_parameters(), compression=compression, **option
        )
        for step in range(3):  # first without buckets, then with new and with existing buckets
            optimizer.zero_grad()
            want = [torch.zeros_like(p) for p in net.parameters()]
            for i in range(passes):
                x = [noise(100 * step + 10 * i + r, 8, 5) for r in range(hvd.size())]
                net(x[hvd.rank()]).square().sum().backward()
                for data in x:
                    for w, g in zip(
                        want, torch.autograd.grad(net(data).square().sum(), list(net.parameters())), strict=True
                    ):
                        w += g if option.get("op") == hvd.Sum else g / hvd.size()
            optimizer.step()
            for p, w in zip(net.parameters(), want, strict=True):
                near(name, p.grad, w, roundings=8)
    if name == "none" or not name.startswith("wire"):
        net = network(dtype=torch.float32)
        before = [p.detach().clone() for p in net.parameters()]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), compression=compression, op=hvd.Adasum
        )
        net(noise(0, 8, 5)).square().sum().backward()  # equal on all ranks, so Adasum takes the plain step
        optimizer.step()
        for p, start in zip(net.parameters(), before, strict=True):
            near(name, p.detach(), start - 0.1 * p.grad, roundings=8)
    else:
        with pytest.raises(ValueError, match=r"op must be Average or Sum .*, got Adasum"):
            hvd.DistributedOptimizer(
                torch.optim.SGD(network(dtype=torch.float32).parameters(), lr=0.1),
                compression=compression,
                op=hvd.Adasum,
            )


@on_ranks(2)
def test_every_compressor_through_every_function_that_takes_one():
    for name in [*ROUNDING, "user"]:
        through_collectives(name)
        through_the_optimizer(name)
