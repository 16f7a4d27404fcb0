"""Names and messages that existing programs rely on."""

import importlib

import torch

import horovod.torch as hvd
from tests.ranks import on_ranks
from tests.torch.programs import OPTIMIZERS, network, wrap


@on_ranks(1, 2)
def test_attributes_of_the_optimizer():
    net = network(dtype=torch.float32)
    net[2].bias.requires_grad_(False)
    optimizer = wrap(net, backward_passes_per_step=2)
    module = importlib.import_module("horovod.torch.optimizer")
    assert isinstance(optimizer, module._DistributedOptimizer)
    assert isinstance(optimizer, torch.optim.SGD)
    assert not isinstance(OPTIMIZERS["sgd"](net.parameters()), module._DistributedOptimizer)
    assert optimizer.backward_passes_per_step == 2
    optimizer.set_backward_passes_per_step(1)
    assert optimizer.backward_passes_per_step == 1
    assert {optimizer._parameter_names[p] for p in net.parameters()} == {n for n, _ in net.named_parameters()}
    assert optimizer._requires_update == {p for p in net.parameters() if p.requires_grad}
    assert not optimizer._handles

    # A program that reduces gradients itself, and waits for each handle or calls synchronize().
    for compression in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.wire_bf16):
        optimizer = wrap(net, compression=compression, op=hvd.Sum)
        first, second = net[0].weight, net[0].bias
        first.grad, second.grad = (torch.full_like(p, 1.0 + hvd.rank()) for p in (first, second))
        handle, context = optimizer._allreduce_grad_async(first)
        result = compression.decompress(hvd.synchronize(handle), context)
        total = hvd.size() * (hvd.size() + 1) / 2
        assert torch.equal(result, torch.full_like(first, total))
        optimizer._handles[second] = optimizer._allreduce_grad_async(second)
        optimizer.synchronize()  # does not reduce gradients again
        assert not optimizer._handles
        assert torch.equal(second.grad, torch.full_like(second, total))
        with optimizer.skip_synchronize():
            optimizer.step()


@on_ranks(2)
def test_sparse_as_dense_around_sparse_adam():
    # Ranks look up different embedding rows, one rank none at all in some steps.
    results = []
    for options in ({}, {"sparse_as_dense": True}, {"sparse_as_dense": True, "groups": 1}):
        torch.manual_seed(4)
        table = torch.nn.Embedding(12, 5, sparse=True)
        optimizer = wrap(table, lambda p: torch.optim.SparseAdam(list(p), lr=0.1), **options)
        for step in range(5):
            optimizer.zero_grad()
            if step != 3 or hvd.rank() == 0:
                table(torch.tensor([hvd.rank() + 1, 2 * step, 2 * step])).square().sum().backward()
            optimizer.step()
            assert table.weight.grad.is_sparse
        results.append((table.weight.detach().clone(), table.weight.grad.to_dense()))
    for weight, grad in results[1:]:
        torch.testing.assert_close(weight, results[0][0])
        torch.testing.assert_close(grad, results[0][1])
    # Rows that no rank looked up are unchanged, as with plain SparseAdam.
    torch.manual_seed(4)
    start = torch.nn.Embedding(12, 5, sparse=True).weight.detach()
    assert torch.equal(results[1][0][11], start[11])
