"""Collectives beyond tests/conformance: orders, empty parts, polling, sparse tensors."""

import random

import pytest
import torch

import horovod.torch as hvd
from tests.ranks import on_ranks


@on_ranks(3)
def test_corners():
    n, me = hvd.size(), hvd.rank()
    wrapped = (100 * n + 128) % 256 - 128
    assert hvd.allreduce(torch.full((5,), 100, dtype=torch.int8), op=hvd.Sum).tolist() == [wrapped] * 5
    mixed = [torch.ones(3), torch.ones(2, dtype=torch.int32), torch.ones(4, dtype=torch.float16)]
    out = hvd.grouped_allreduce(mixed, op=hvd.Sum)
    assert [t.dtype for t in out] == [t.dtype for t in mixed]
    assert all((t == n).all() for t in out)
    # Groups of several ranks in another order.
    names = [f"set{i}" for i in range(6)]
    random.Random(me).shuffle(names)
    handles = {}
    for name in names:
        pair = [torch.full((2,), float(name[3:])), torch.ones(1)]
        handles[name] = hvd.grouped_allreduce_async(pair, name=name, op=hvd.Sum)
    for name, handle in handles.items():
        assert hvd.synchronize(handle)[0].tolist() == [float(name[3:]) * n] * 2
    # Some or all ranks contribute nothing.
    assert hvd.allgather(torch.ones(0 if me == 0 else 2, 5)).shape == (2 * (n - 1), 5)
    assert hvd.allgather(torch.ones(0, 5)).shape == (0, 5)
    output, received = hvd.alltoall(torch.ones(3), splits=[3] + [0] * (n - 1))
    assert output.numel() == (3 * n if me == 0 else 0)
    assert received.tolist() == [3 if me == 0 else 0] * n
    with pytest.raises(ValueError, match=rf"{2 * n + 1}.*multiple of"):
        hvd.alltoall(torch.ones(2 * n + 1))
    # Fewer rows than ranks, and a name that another operation uses at the same time.
    assert hvd.reducescatter(torch.ones(1, 2), name="again", op=hvd.Sum).shape == (int(me == 0), 2)
    hvd.reducescatter(torch.ones(2 * n), name="again")
    assert hvd.allreduce(torch.ones(1), name="again").item() == 1
    # Unnamed operations match by order.
    unnamed = [hvd.allreduce_async(torch.full((3,), float(i + me)), op=hvd.Sum) for i in range(300)]
    for i, handle in enumerate(unnamed):
        assert hvd.synchronize(handle).tolist() == [float(i * n + n * (n - 1) // 2)] * 3


@on_ranks(2)
def test_poll():
    for start in (hvd.allreduce_async, lambda tensor, name: hvd.grouped_allreduce_async([tensor, tensor], name=name)):
        if hvd.rank() == 0:
            handle = start(torch.ones(10), name="late")
            assert not hvd.poll(handle)
        hvd.barrier()  # rank 1 submits its part only now
        if hvd.rank() == 1:
            handle = start(torch.ones(10), name="late")
        while not hvd.poll(handle):
            pass
        hvd.synchronize(handle)


@on_ranks(3)
def test_sparse_allreduce():
    n, me = hvd.size(), hvd.rank()
    rows = torch.tensor([[me, n, me]])  # one own row, twice, and one shared by all ranks
    t = torch.sparse_coo_tensor(rows, torch.ones(3, 2), (n + 1, 2), check_invariants=False)
    want = torch.zeros(n + 1, 2)
    want[:n] = 2
    want[n] = n
    for op in (hvd.Sum, hvd.Average):
        result = hvd.sparse_allreduce_async(t, "sparse", op)()
        assert result.is_sparse
        torch.testing.assert_close(result.to_dense(), want / (n if op == hvd.Average else 1))
    indices, values = torch.empty(1, 0, dtype=torch.int64), torch.empty(0, 2)
    empty = torch.sparse_coo_tensor(indices, values, (n + 1, 2), check_invariants=False)
    assert hvd.sparse_allreduce_async(t if me == 0 else empty, "some", hvd.Sum)().to_dense().sum() == 6
    with pytest.raises(ValueError, match="Min"):
        hvd.sparse_allreduce_async(t, "min", hvd.Min)
    with pytest.raises(ValueError, match="sparse_coo"):
        hvd.sparse_allreduce_async(torch.ones(2), "dense", hvd.Sum)
