"""FSDP2, DTensor, functional collectives, checkpoints and sharded optimizers over the backend ``hvd``.

Modules of PyTorch that take seconds to import are imported in the tests, so that collecting them costs nothing.
"""

import pytest
import torch
import torch.distributed as dist

import horovod.torch as hvd
from tests.ranks import on_ranks
from tests.torch.distributed.programs import batches, close, default_group, network, own_rows, train


def sharded(model, **options):
    """Return the model with its parameters sharded by FSDP2."""
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, **options)
    return fully_shard(model, **options)


def average(backend):
    """Return FSDP2's gradient of a weight whose gradient is 1 on every rank."""
    from torch.distributed.fsdp import fully_shard

    group = dist.new_group(backend=backend)
    mesh = dist.device_mesh.DeviceMesh.from_group(group, "cpu")
    layer = torch.nn.Linear(4, 4, bias=False)
    fully_shard(layer, mesh=mesh)
    layer(torch.ones(1, 4)).sum().backward()
    return layer.weight.grad.to_local().flatten()[0].item()


@pytest.mark.heavy
@on_ranks(2)
def test_fsdp2_trains_as_one_process():
    with default_group():
        close(train(sharded(network()), own_rows()), train(network(), slice(None)))
        # With earlier versions of PyTorch, gloo returns the sum (pytorch/pytorch#162338).
        assert average("hvd") == average("gloo") == 1.0


@pytest.mark.heavy
@on_ranks(4)
def test_hsdp_clipping_and_tensors_on_a_mesh():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    with default_group():
        expected = train(network(), slice(None))
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
        model = sharded(network(), mesh=mesh)
        close(train(model, own_rows()), expected)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert norm.full_tensor().isfinite()
        whole = torch.arange(24.0).view(8, 3)
        tensor = distribute_tensor(whole, mesh, [Replicate(), Shard(0)])
        again = tensor.redistribute(placements=[Shard(0), Replicate()])
        assert torch.equal(again.full_tensor(), whole)
        summed = DTensor.from_local(whole, mesh, [Shard(0), Shard(0)]).sum()
        assert summed.full_tensor() == 4 * whole.sum()


@pytest.mark.heavy
@on_ranks(2)
def test_functional_collectives():
    import torch.distributed._functional_collectives as functional

    with default_group():
        group, rank = dist.group.WORLD, hvd.rank()
        x = torch.arange(4.0) + rank
        assert torch.equal(functional.all_reduce(x, "sum", group) + 0, 2 * torch.arange(4.0) + 1)
        gathered = functional.all_gather_tensor(x, 0, group) + 0
        assert torch.equal(gathered, torch.cat([torch.arange(4.0), torch.arange(4.0) + 1]))
        part = functional.reduce_scatter_tensor(x, "avg", 0, group) + 0
        assert torch.equal(part, (torch.arange(4.0) + 0.5)[2 * rank : 2 * rank + 2])
        assert torch.equal(functional.broadcast(x, 1, group) + 0, torch.arange(4.0) + 1)
        swapped = functional.all_to_all_single(x, [2, 2], [2, 2], group) + 0
        assert torch.equal(swapped, torch.cat([torch.arange(4.0)[2 * rank : 2 * rank + 2] + one for one in range(2)]))
        compiled = torch.compile(lambda value: functional.all_reduce(value * 2, "sum", group) + 1, backend="eager")
        assert torch.equal(compiled(x), 2 * (2 * torch.arange(4.0) + 1) + 1)


@pytest.mark.heavy
@on_ranks(2)
def test_checkpoints_and_optimizers(tmp_path):
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    with default_group():
        model = sharded(network())
        state = {"model": model.state_dict()}
        checkpoint.save(state, checkpoint_id=str(tmp_path))
        with torch.no_grad():
            for one in model.parameters():
                one.zero_()
        checkpoint.load(state, checkpoint_id=str(tmp_path))
        close([one.full_tensor() for one in model.parameters()], list(network().parameters()))
        expected = train(network(), slice(None))
        model = DistributedDataParallel(network())
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
        for rows in batches(hvd.size()):
            optimizer.zero_grad()
            model(rows[own_rows()]).square().mean().backward()
            optimizer.step()
        close(list(model.parameters()), expected)
