"""Gradients that are views of buckets: which gradients share a bucket, and that nothing else changes."""

from unittest import mock

import pytest
import torch

import horovod.torch as hvd
from horovod._core import take_gradients
from horovod.torch import reducer
from tests.ranks import on_ranks
from tests.torch.bucketed import backward, buckets, in_buckets, network, step, wrap
from tests.torch.programs import OPTIMIZERS, assert_all_equal
from tests.torch.reference import bits


@pytest.mark.parametrize("enabled", [True, None])
@on_ranks(3)
def test_buckets_hold_gradients_in_order_of_arrival(enabled):
    net = network()
    optimizer = wrap(net, gradient_as_bucket_view=enabled)
    step(net, optimizer, 0)
    assert not any(hvd.in_shared_memory(p.grad) for p in net.parameters())
    (bucket,) = buckets(optimizer)
    # The last layer's gradients arrive first.
    arrived = [slot.name for slot in bucket.members]
    assert [name.split(".")[0] for name in arrived] == ["4", "4", "2", "2", "0", "0"]
    assert hvd.allgather_object(arrived) == [arrived] * hvd.size()
    for number in (1, 2):
        step(net, optimizer, number)
        assert buckets(optimizer) == [bucket]
        end = bucket.flat.data_ptr()
        for slot in bucket.members:
            grad = slot.parameter.grad
            assert hvd.in_shared_memory(grad)
            assert grad.data_ptr() % 64 == 0
            assert grad.data_ptr() >= end
            end = grad.data_ptr() + grad.nbytes
        assert end <= bucket.flat.data_ptr() + bucket.flat.nbytes
    assert_all_equal(net)


def large_gradients():
    # By default large gradients are reduced in place; otherwise they have their own buckets.
    for enabled, expected in ((None, [["0.bias", "1.bias", "1.weight"]]), (True, None), (False, [])):
        net = torch.nn.Sequential(torch.nn.Linear(400, 1000), torch.nn.Linear(1000, 10))
        optimizer = wrap(net, gradient_as_bucket_view=enabled)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(2, 400)).sum().backward()
            optimizer.step()
        names = [sorted(slot.name.split("#")[0] for slot in bucket.members) for bucket in buckets(optimizer)]
        if expected is None:
            assert sorted(n for group in names for n in group) == sorted(n for n, _ in net.named_parameters())
            assert ["0.weight"] in names  # alone
        else:
            assert names == expected
        # No second copy: all gradients together take the memory of the parameters, plus alignment.
        storages = {p.grad.untyped_storage().data_ptr(): p.grad.untyped_storage().nbytes() for p in net.parameters()}
        assert sum(storages.values()) < 1.01 * sum(p.nbytes for p in net.parameters())


@pytest.mark.parametrize("environ", [{}, {"HOROVOD_ARENA_BYTES": "0"}])
def test_large_gradients(pool, environ):
    pool(2, **environ).run(large_gradients)


def trained(make, enabled, passes=1, clip=False, set_to_none=True, dtype=torch.float32, steps=6, **options):
    net = network(dtype)
    optimizer = wrap(net, make, gradient_as_bucket_view=enabled, backward_passes_per_step=passes, **options)
    for number in range(steps):
        optimizer.zero_grad(set_to_none=set_to_none)
        for i in range(passes):
            backward(net, number * passes + i)
        if clip:
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    assert bool(buckets(optimizer)) == (enabled is not False)
    assert_all_equal(net)
    return [bits(t).tolist() for p in net.parameters() for t in (p, p.grad)]


VARIANTS = {
    "plain": {},
    "sum": {"op": hvd.Sum},
    "predivide": {"gradient_predivide_factor": 2.0},
    "passes": {"passes": 3},
    "zeroed in place": {"set_to_none": False},
    "passes zeroed in place": {"passes": 2, "set_to_none": False},
    "clipped": {"clip": True},
    "float64": {"dtype": torch.float64},
    "bfloat16": {"dtype": torch.bfloat16},
    **{kind: {"compression": getattr(hvd.Compression, kind)} for kind in ("fp16", "bf16", "wire_fp16", "wire_bf16")},
}


@pytest.mark.parametrize("variant", VARIANTS)
@on_ranks(3)
def test_results_are_bitwise_equal_without_buckets(variant):
    for kind, exchange in (("momentum", reducer.buckets._exchange), ("adam", None)):  # with and without native copies
        with mock.patch.object(reducer.buckets, "_exchange", exchange):
            apart, together = (trained(OPTIMIZERS[kind], enabled, **VARIANTS[variant]) for enabled in (False, True))
        assert apart == together


def zero(g):
    return torch._efficientzerotensor(g.shape)  # has no memory


@pytest.mark.parametrize(
    "make", [torch.clone, torch._neg_view, lambda g: g.requires_grad_() * 1, torch.Tensor.to_sparse, zero]
)
def test_native_copies_take_all_gradients_or_none(make):
    parameters, views = ([torch.nn.Parameter(torch.zeros(2)) for _ in "ab"], [torch.zeros(2) for _ in "ab"])
    arrived = [torch.tensor([1.0, 2.0]), make(torch.tensor([3.0, 4.0]))]
    for p, grad in zip(parameters, arrived, strict=True):
        p.grad = grad
    lists = parameters, arrived, [g._version for g in arrived], views, [v.data_ptr() for v in views]
    native = make is torch.clone and reducer.buckets._exchange is not None  # which PyTorch before 2.10 does not have
    assert not reducer.buckets._exchange or take_gradients(reducer.buckets._exchange, *lists) == native
    assert [v.tolist() for v in views] == ([[1, 2], [3, 4]] if native else [[0, 0], [0, 0]])
    assert [p.grad is v for p, v in zip(parameters, views, strict=True)] == [native, native]


@on_ranks(2)
def test_optimizers_without_buckets():
    class Whole:  # a compressor that works on several elements at once
        compress = staticmethod(lambda t: (t / 2, None))
        decompress = staticmethod(lambda t, _: t * 2)

    for options in (
        {"groups": 1},
        {"compression": Whole},
        {"gradient_as_bucket_view": False},
        {"gradient_as_bucket_view": hvd.rank() == 0},  # all ranks must request them
    ):
        net = network()
        optimizer = wrap(net, **options)
        for number in range(3):
            step(net, optimizer, number)
        assert not buckets(optimizer)
        assert_all_equal(net)
    with pytest.raises(ValueError, match=r"gradient_as_bucket_view must be .*, got 3"):
        wrap(network(), gradient_as_bucket_view=3)


@on_ranks(2)
def test_kinds_of_parameters():
    torch.manual_seed(1)
    net = torch.nn.ModuleDict(
        {
            "table": torch.nn.Embedding(8, 4, sparse=True),
            "conv": torch.nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last),
            "line": torch.nn.Linear(4, 4),
            "wide": torch.nn.Linear(4, 4).double(),
        }
    )
    hvd.broadcast_parameters(net.state_dict(), 0)
    optimizer = wrap(net, lambda p: torch.optim.SGD(p, lr=0.1))
    for _ in range(4):
        optimizer.zero_grad()
        x = net["line"](net["table"](torch.tensor([hvd.rank(), 7])))
        image = net["conv"](torch.ones(1, 4, 3, 3).to(memory_format=torch.channels_last))
        (x.sum() + image.sum() + net["wide"](x.double()).sum()).backward()
        optimizer.step()
    assert net["table"].weight.grad.is_sparse
    assert net["conv"].weight.grad.is_contiguous(memory_format=torch.channels_last)
    assert in_buckets(optimizer) == {"conv.bias", "line.weight", "line.bias", "wide.weight", "wide.bias"}
    assert all(len({slot.parameter.dtype for slot in bucket.members}) == 1 for bucket in buckets(optimizer))
    # A gradient that becomes sparse later is still reduced.
    for p in net.parameters():
        p.grad = None
    p = net["line"].weight
    p.grad = torch.eye(4).mul(hvd.rank()).to_sparse()
    optimizer.step()
    torch.testing.assert_close(p.grad, torch.eye(4) * (hvd.size() - 1) / 2)
    assert_all_equal(net)


@on_ranks(2)
def test_parameters_that_are_frozen_thawed_and_added():
    net = network()
    net[2].requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net[:3].parameters(), lr=0.05), net[:3].named_parameters(), gradient_as_bucket_view=True
    )
    step(net, optimizer, 0)
    assert in_buckets(optimizer) == {"0.weight", "0.bias"}
    net[2].requires_grad_(True)
    optimizer.add_param_group({"params": net[4].parameters()})
    for number in range(1, 4):
        step(net, optimizer, number)
    assert len(in_buckets(optimizer)) == 6
    # After freezing again, the rest of the bucket is reduced alone, and after some steps gets its own bucket.
    net[2].requires_grad_(False)
    frozen = net[2].weight.detach().clone()
    for number in range(4, 12):
        step(net, optimizer, number)
        assert net[2].weight.grad is None
    assert torch.equal(frozen, net[2].weight)
    assert in_buckets(optimizer) == {"0.weight", "0.bias", *(n for n in in_buckets(optimizer) if "noname" in n)}
    assert len(in_buckets(optimizer)) == 4
    assert_all_equal(net)
