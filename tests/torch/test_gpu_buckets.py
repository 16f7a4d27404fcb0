"""Gradients on a simulated GPU that are views of buckets there."""

import pytest
import torch

import horovod.torch as hvd
from tests.gpu import test_training as training
from tests.torch.bucketed import buckets, in_buckets, wrap

pytestmark = pytest.mark.heavy


def bits(tensor):
    return tensor.detach().cpu().flatten().view(torch.int32).tolist()


def one_step(net, optimizer, number, set_to_none=True):
    optimizer.zero_grad(set_to_none=set_to_none)
    net(training.batch(number, hvd.rank())).square().mean().backward()
    optimizer.step()


def layout():
    from tests.torch.simulated_gpu import OnGpu

    net = training.network()
    optimizer = wrap(net, gradient_as_bucket_view=None)
    one_step(net, optimizer, 0)
    assert not buckets(optimizer) or all(
        p.grad.data_ptr() != buckets(optimizer)[0].flat.data_ptr() for p in net.parameters()
    )
    (bucket,) = buckets(optimizer)
    assert isinstance(bucket.flat, OnGpu)
    for number in range(1, 5):
        one_step(net, optimizer, number, set_to_none=number % 2 == 0)
        assert buckets(optimizer) == [bucket]
        end = bucket.flat.data_ptr()
        assert end % 256 == 0
        for slot in bucket.members:
            grad = slot.parameter.grad
            assert isinstance(grad, OnGpu)
            assert grad.data_ptr() % 256 == 0
            assert grad.data_ptr() >= end
            end = grad.data_ptr() + grad.nbytes
        assert end <= bucket.flat.data_ptr() + bucket.flat.nbytes
    assert len(in_buckets(optimizer)) == 6
    kept = net[0].weight.grad
    before = bits(kept)
    one_step(net, optimizer, 5)  # gradients that the program keeps are unchanged
    assert bits(kept) == before
    assert bits(net[0].weight.grad) != before
    one_step(net, optimizer, 6)
    hvd.check_in_sync(net, optimizer)


def mixed():
    """A model on CPU and GPU has buckets on both; gradients that cannot share one are reduced alone."""
    torch.manual_seed(5)
    net = torch.nn.ModuleDict(
        {
            "table": torch.nn.Embedding(8, 4, sparse=True).to("cuda"),
            "here": torch.nn.Linear(6, 4),
            "line": torch.nn.Linear(4, 4).to("cuda"),
            "turned": torch.nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last).to("cuda"),
            "more": torch.nn.Linear(4, 4).to("cuda"),
        }
    )
    optimizer = wrap(net)
    for number in range(5):
        optimizer.zero_grad()
        x = net["here"](torch.full((2, 6), float(number + hvd.rank()))).to("cuda")
        x = net["line"](x) + net["table"](torch.tensor([hvd.rank(), 7]).to("cuda"))
        if number < 3 or hvd.rank() == 0:  # on one rank only: the other contributes zeros
            x = net["more"](x)
        x.square().sum().backward()
        optimizer.step()
    together = [{slot.name.split("#")[0] for slot in bucket.members} for bucket in buckets(optimizer)]
    assert {"here.weight", "here.bias"} in together
    assert {name for names in together for name in names if not name.startswith("here")} == {
        "line.weight",
        "line.bias",
        "more.weight",
        "more.bias",
    }
    assert net["table"].weight.grad.is_sparse
    hvd.check_in_sync(net)


def test_buckets_on_a_gpu(gpu_ranks):
    job = gpu_ranks(2)
    for part in (layout, mixed):
        job.run(part)
