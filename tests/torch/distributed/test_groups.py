"""Groups: members only, nested, overlapping, destroyed and created again; errors and timeouts."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import horovod.torch as hvd
from tests.ranks import on_ranks
from tests.torch.distributed.programs import default_group


def total(group=None):
    got = torch.tensor([float(hvd.rank())])
    dist.all_reduce(got, group=group)
    return got.item()


@on_ranks(3)
def test_groups_of_some_ranks():
    for _ in range(2):  # again after destroy_process_group
        with default_group():
            rank = hvd.rank()
            first, second = dist.new_group([0, 1]), dist.new_group([1, 2])
            if rank != 1:  # no call on rank 1
                members = dist.new_group([0, 2], use_local_synchronization=True)
                assert total(members) == 2.0
                assert dist.get_process_group_ranks(members) == [0, 2]
                dist.destroy_process_group(members)
            again = dist.new_group([0, 1])
            if rank < 2:
                assert [total(first), total(again), total(first)] == [1.0] * 3
            if rank > 0:
                assert total(second) == 3.0
            assert total() == 3.0
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 3.0
            dist.barrier()


@on_ranks(2)
def test_errors_name_call_and_group():
    with default_group():
        rank = hvd.rank()
        named = r"all_reduce in process group 'default' \(hvd, ranks \[0, 1\]\): "
        with pytest.raises(ValueError, match=named + "ReduceOp AVG needs floating-point"):
            dist.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.AVG)
        with pytest.raises(ValueError, match=r"all_reduce .*BOR needs integer or bool tensors, got float32"):
            dist.all_reduce(torch.ones(2), dist.ReduceOp.BOR)
        with pytest.raises(ValueError, match="dense"):
            dist.all_reduce(torch.ones(2, 2).to_sparse())
        with pytest.raises(ValueError, match=r"tensors must be on .*, got one on meta"):
            dist.all_reduce(torch.ones(1, device="meta"))
        with pytest.raises(dist.DistBackendError, match=named + r".*shape: \[1\] on rank 0"):
            dist.all_reduce(torch.ones(1 + rank))
        outputs = [torch.empty(2 - rank), torch.empty(2 - rank)]
        with pytest.raises(dist.DistBackendError, match="must have room for"):
            dist.all_gather(outputs, torch.ones(1 + rank))
        assert total() == 1.0


@on_ranks(2)
def test_mismatched_call_and_missing_rank():
    with default_group(seconds=0.5):
        if hvd.rank() == 0:
            with pytest.raises(dist.DistBackendError, match=r"all_reduce in .*'default' .*timed out after 0.5"):
                dist.all_reduce(torch.ones(1))
            with pytest.raises(dist.DistBackendError, match=r"ranks \[1\] have not reached it"):
                dist.group.WORLD.monitored_barrier(timedelta(seconds=0.2))
    hvd.barrier()


@pytest.mark.heavy
@on_ranks(2)
def test_mismatched_calls():
    calls = [lambda: dist.all_reduce(torch.ones(1)), lambda: dist.broadcast(torch.ones(1), 0)]
    with default_group(), pytest.raises(dist.DistBackendError, match="ranks disagree about the operation"):
        calls[hvd.rank()]()
