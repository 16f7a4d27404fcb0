"""Collectives within a set of ranks, static and dynamic."""

import pytest
import torch

import horovod.torch as hvd
from tests.ranks import on_ranks


def even_and_odd(make):
    even, odd = make([0, 2]), make([1, 3])
    own, other = (even, odd) if hvd.rank() % 2 == 0 else (odd, even)
    r, total = float(hvd.rank()), float(sum(own.ranks))
    assert (own.size(), own.rank(), own.included(), other.included()) == (2, hvd.rank() // 2, True, False)
    # Both sets and the global one work at the same time under the same names.
    for _ in range(20):
        handle = hvd.allreduce_async(torch.tensor([r]), name="x", op=hvd.Sum, process_set=own)
        summed = hvd.allreduce_async(torch.tensor([r]), name="x", op=hvd.Sum)
        assert hvd.synchronize(handle).item() == total
        assert hvd.synchronize(summed).item() == 6
        assert hvd.allreduce(torch.tensor([r]), process_set=own).item() == total / 2
    first, second = own.ranks
    assert hvd.reducescatter(torch.tensor([r, r, r]), op=hvd.Sum, process_set=own).tolist() == [total] * (
        2 if hvd.rank() == first else 1
    )
    assert hvd.broadcast_object(("from", hvd.rank()), second, process_set=own) == ("from", second)
    assert hvd.allgather_object(hvd.rank(), process_set=own) == own.ranks
    hvd.barrier(process_set=own)
    if hvd.rank() == 0:
        for call in (  # sets of other ranks, and a root that is no member: an immediate error on this rank alone
            lambda: hvd.reducescatter(torch.ones(1), process_set=odd),
            lambda: hvd.broadcast(torch.ones(1), 1, process_set=even),
        ):
            with pytest.raises(ValueError, match=r"1|rank 0"):
                call()
    hvd.barrier()


@on_ranks(4, HOROVOD_DYNAMIC_PROCESS_SETS="1", fresh=True)
def test_dynamic():
    even_and_odd(hvd.add_process_set)


@on_ranks(4, initialized=False)
def test_static():
    hvd.shutdown()
    sets = {(0, 2): hvd.ProcessSet([2, 0]), (1, 3): hvd.ProcessSet(range(1, 4, 2))}
    hvd.init(process_sets=list(sets.values()))
    even_and_odd(lambda ranks: sets[tuple(ranks)])
    with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS"):
        hvd.add_process_set([0, 1])


@on_ranks(3, HOROVOD_DYNAMIC_PROCESS_SETS="1", fresh=True)
def test_optimizer():
    pairs = hvd.add_process_set([0, 1]), hvd.add_process_set([2])
    own = pairs[0] if hvd.rank() < 2 else pairs[1]
    p = torch.zeros(3, requires_grad=True)
    outsider = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), process_set=pairs[0])
    (p * float(hvd.rank() + 1)).sum().backward()
    outsider.step()
    # Ranks 0 and 1 average their gradients 1 and 2; rank 2 is alone.
    assert p.tolist() == ([-1.5] * 3 if own is pairs[0] else [-3.0] * 3)
    hvd.barrier()
    for s in reversed(pairs):
        hvd.remove_process_set(s)
