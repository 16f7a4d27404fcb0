"""Training with DistributedDataParallel over the backend ``hvd``."""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import horovod.torch as hvd
from tests.ranks import on_ranks
from tests.torch.distributed.programs import close, default_group, network, own_rows, train


@on_ranks(2)
def test_ddp_trains_as_one_process():
    with default_group():
        expected = train(network(), slice(None))
        close(train(DistributedDataParallel(network()), own_rows()), expected)


@pytest.mark.heavy
@on_ranks(3)
def test_options_of_ddp():
    with default_group():
        expected = train(network(), slice(None))
        for options in (
            {"gradient_as_bucket_view": True},
            {"static_graph": True},
            {"find_unused_parameters": True},
            {"bucket_cap_mb": 0.0001},
        ):
            unused = "find_unused_parameters" in options
            got = train(DistributedDataParallel(network(unused), **options), own_rows())
            close(got[: len(expected)], expected)
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        model = DistributedDataParallel(network())
        model.register_comm_hook(None, default_hooks.allreduce_hook)
        close(train(model, own_rows()), expected)


@pytest.mark.heavy
@on_ranks(2)
def test_join_of_ddp():
    with default_group():
        model = DistributedDataParallel(network())
        with model.join():
            for _ in range(1 + hvd.rank()):
                model(torch.ones(2, 6)).sum().backward()
        assert hvd.allreduce(model.module[0].weight.grad, op=hvd.Max).isfinite().all()
