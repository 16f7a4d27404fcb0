"""PyTorch's global modes: Horovod's internal tensors ignore the default device, which stands for a GPU here."""

import torch

import horovod.torch as hvd
from tests.ranks import on_ranks


def ones(*shape):
    return torch.ones(*shape, device="cpu")


def net():
    network = torch.nn.Linear(2, 2, device="cpu")
    torch.nn.init.ones_(network.weight)
    return network


@on_ranks(2)
def test_default_device():
    torch.set_default_device("meta")
    try:
        n = hvd.size()
        output, received = hvd.alltoall(ones(n), [1] * n)
        assert output.tolist() == [1.0] * n
        assert received.tolist() == [1] * n
        assert hvd.allgather(ones(0, 2)).device.type == "cpu"
        assert hvd.empty_shared(3).device.type == "cpu"
        assert sorted(hvd.elastic.ElasticSampler(list(range(2 * n)))) != []
        sparse = hvd.sparse_allreduce_async(ones(2, 2).to_sparse(), name="sparse", op=hvd.Sum)()
        assert sparse.to_dense().tolist() == [[n, n]] * 2
        for options in (
            {},
            {"gradient_as_bucket_view": True},
            {"groups": 1},
            {"compression": hvd.Compression.wire_int8},
        ):
            model = net()
            optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)
            hvd.broadcast_parameters(model.state_dict(), 0)
            hvd.broadcast_optimizer_state(optimizer, 0)
            for _ in range(4):
                optimizer.zero_grad()
                model(ones(3, 2) * (hvd.rank() + 1)).sum().backward()
                optimizer.step()
            hvd.check_in_sync(model)
        model = net()
        optimizer = hvd.DistributedOptimizer(torch.optim.LBFGS(model.parameters(), max_iter=2))

        def closure():
            optimizer.zero_grad()
            loss = model(ones(3, 2)).square().sum()
            loss.backward()
            return loss

        assert torch.isfinite(optimizer.step(closure))
    finally:
        torch.set_default_device(None)
