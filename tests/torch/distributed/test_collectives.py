"""Collectives of the backend ``hvd`` against NumPy."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import horovod.torch as hvd
from tests.ranks import on_ranks
from tests.torch.distributed.programs import all_values, default_group, values

REDUCE = {
    ReduceOp.SUM: np.add.reduce,
    ReduceOp.AVG: lambda parts: np.mean(parts, axis=0),
    ReduceOp.MIN: np.minimum.reduce,
    ReduceOp.MAX: np.maximum.reduce,
    ReduceOp.PRODUCT: np.multiply.reduce,
    ReduceOp.BAND: np.bitwise_and.reduce,
    ReduceOp.BOR: np.bitwise_or.reduce,
    ReduceOp.BXOR: np.bitwise_xor.reduce,
}
BITS = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
COMPLEX = (torch.complex64, torch.complex128)
OTHERS = (torch.bool, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn)


def reduced(op, parts):
    """Return NumPy's reduction in the dtype of the parts."""
    dtype = parts[0].dtype
    arrays = [part.float().numpy() if dtype is torch.bfloat16 else part.numpy() for part in parts]
    return torch.from_numpy(np.asarray(REDUCE[op](np.stack(arrays)))).to(dtype)


def defined(op, dtype):
    if dtype.is_complex:
        return op in (ReduceOp.SUM, ReduceOp.AVG)
    if dtype.is_floating_point:
        return op not in BITS
    return op != ReduceOp.AVG


def same(got, expected):
    """Compare bits, except those of averages, which the engine multiplies by a reciprocal."""
    assert got.dtype == expected.dtype
    if got.dtype in (*FLOATS, *COMPLEX):
        torch.testing.assert_close(got, expected)
    else:
        assert got.view(torch.uint8).equal(expected.view(torch.uint8)), (got, expected)


def check_reductions(op, dtype, size):
    parts, local = all_values(size, dtype, 2 * size), values(hvd.rank(), dtype, 2 * size)
    expected = reduced(op, parts)
    got = local.clone()
    dist.all_reduce(got, op)
    same(got, expected)
    got = local.clone()
    dist.reduce(got, size - 1, op)
    same(got, expected if hvd.rank() == size - 1 else local)
    own = slice(2 * hvd.rank(), 2 * hvd.rank() + 2)
    got = torch.empty(2, dtype=dtype)
    dist.reduce_scatter_tensor(got, local, op)
    same(got, expected[own])
    work = dist.reduce_scatter(got.zero_(), list(local.chunk(size)), op, async_op=True)
    work.wait()
    same(got, expected[own])


def check_movements(dtype, size):
    rank, parts = hvd.rank(), all_values(size, dtype)
    got = values(rank, dtype)
    dist.broadcast(got, 1)
    same(got, parts[1])
    outputs = [torch.empty(6, dtype=dtype) for _ in range(size)]
    dist.all_gather(outputs, parts[rank])
    same(torch.stack(outputs), torch.stack(parts))
    got = torch.empty(6 * size, dtype=dtype)
    dist.all_gather_into_tensor(got, parts[rank])
    same(got, torch.cat(parts))
    outputs = [torch.empty(6, dtype=dtype) for _ in range(size)] if rank == 1 else None
    dist.gather(parts[rank], outputs, dst=1)
    if rank == 1:
        same(torch.stack(outputs), torch.stack(parts))
    got = torch.empty(6, dtype=dtype)
    dist.scatter(got, parts if rank == 0 else None, src=0)
    same(got, parts[rank])
    long = all_values(size, dtype, 2 * size)
    got = torch.empty(2 * size, dtype=dtype)
    dist.all_to_all_single(got, long[rank])
    same(got, torch.cat([part[2 * rank : 2 * rank + 2] for part in long]))
    outputs = [torch.empty(2, dtype=dtype) for _ in range(size)]
    dist.all_to_all(outputs, list(long[rank].chunk(size)))
    same(torch.cat(outputs), got)
    if rank == 0:
        dist.send(parts[0], 1)
    elif rank == 1:
        got = torch.empty(6, dtype=dtype)
        dist.recv(got, 0)
        same(got, parts[0])


@on_ranks(2)
def test_each_call_once():
    with default_group():
        check_reductions(ReduceOp.SUM, torch.float32, 2)
        check_reductions(ReduceOp.BXOR, torch.int32, 2)
        check_movements(torch.float32, 2)
        uneven()
        messages()
        objects()
        premultiplied()


@pytest.mark.heavy
@on_ranks(3)
def test_conformance():
    with default_group():
        for dtype in (*FLOATS, *INTEGERS, *COMPLEX):
            for op in REDUCE:
                if defined(op, dtype):
                    check_reductions(op, dtype, 3)
        for dtype in (*FLOATS, *INTEGERS, *COMPLEX, *OTHERS):
            check_movements(dtype, 3)
        uneven()
        messages()
        objects()
        premultiplied()


def uneven():
    rank, size = hvd.rank(), hvd.size()
    outputs = [torch.empty(one + 1) for one in range(size)]
    dist.all_gather(outputs, torch.full((rank + 1,), float(rank)))
    assert [output.tolist() for output in outputs] == [[float(one)] * (one + 1) for one in range(size)]
    # Rank r sends r + 1 rows to each rank.
    got = torch.empty(sum(range(1, size + 1)), 2)
    sent = torch.full((size * (rank + 1), 2), float(rank))
    dist.all_to_all_single(got, sent, list(range(1, size + 1)), [rank + 1] * size)
    assert got[:, 0].tolist() == [float(one) for one in range(size) for _ in range(one + 1)]
    output = torch.empty(rank + 1)
    dist.reduce_scatter(output, [torch.ones(one + 1) for one in range(size)])
    assert output.tolist() == [float(size)] * (rank + 1)
    transposed = torch.full((2, 3), float(rank)).t()
    dist.all_reduce(transposed)
    assert transposed.eq(sum(range(size))).all()
    empty = torch.empty(0)
    dist.all_reduce(empty)
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar, ReduceOp.MAX)
    assert scalar.item() == size - 1


def messages():
    rank, size = hvd.rank(), hvd.size()
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(3):
        got = torch.empty(4)
        sent = torch.full((4,), float(10 * step + rank))
        operations = [dist.P2POp(dist.isend, sent, right), dist.P2POp(dist.irecv, got, left)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert got.eq(10 * step + left).all()
    if rank == 0:
        seen = []
        for _ in range(size - 1):
            got = torch.empty(2)
            source = dist.recv(got, tag=5)
            seen.append(source)
            assert got.eq(source).all()
        assert sorted(seen) == list(range(1, size))
    else:
        dist.send(torch.full((2,), float(rank)), 0, tag=5)


def objects():
    rank, size = hvd.rank(), hvd.size()
    collected = [None] * size
    dist.all_gather_object(collected, {"rank": rank})
    assert collected == [{"rank": one} for one in range(size)]
    objects = ["a", 1] if rank == 0 else [None, None]
    dist.broadcast_object_list(objects, src=0)
    assert objects == ["a", 1]
    got = [None]
    dist.scatter_object_list(got, [f"to {one}" for one in range(size)] if rank == 0 else None, src=0)
    assert got == [f"to {rank}"]
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(rank, gathered, dst=0)
    assert gathered in (None, list(range(size)))
    dist.barrier()


def premultiplied():
    size = hvd.size()
    for factor in (0.5, torch.tensor([0.5])):
        got = torch.ones(2 * size)
        dist.all_reduce(got, dist._make_nccl_premul_sum(factor))
        assert got.eq(size / 2).all()
        part = torch.empty(2)
        dist.reduce_scatter_tensor(part, torch.ones(2 * size), dist._make_nccl_premul_sum(factor))
        assert part.eq(size / 2).all()
