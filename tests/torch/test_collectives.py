"""Collectives beyond what tests/conformance shows of every frontend: many in flight, bits, handles, sparse tensors."""

import random

import pytest
import torch

import horovod.torch as hvd
from tests.ranks import on_ranks
from tests.torch.reference import ALL, FLOATS, SHAPES, assert_reduced, bits, same_bits, value

OPS = [hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product]


def all_in_flight():
    # Everything in flight at once, in another order on every rank, matched by name.
    cases = [(d, s, op) for d in ALL for s in SHAPES for op in OPS if not (d is torch.bool and op == hvd.Average)]
    random.Random(hvd.rank()).shuffle(cases)
    issued = []
    for number, (dtype, shape, op) in enumerate(cases):
        t = value(hvd.rank(), dtype, shape)
        in_place = (number + hvd.rank()) % 2 == 0
        start = hvd.allreduce_async_ if in_place else hvd.allreduce_async
        issued.append((start(t, name=f"{dtype}.{shape}.{op}", op=op), dtype, shape, op, t, in_place))
    digests = {}
    for handle, dtype, shape, op, t, in_place in issued:
        out = hvd.synchronize(handle)
        assert (out is t) == in_place
        assert_reduced(out, op, [value(r, dtype, shape) for r in range(hvd.size())])
        if not in_place:
            assert same_bits(t, value(hvd.rank(), dtype, shape))
        digests[f"{dtype}.{shape}.{op}"] = bits(out).tolist()
    return digests


def test_many_in_flight(pool):
    digests = pool(3).run(all_in_flight)
    assert all(d == digests[0] for d in digests), "the ranks' bits differ"


def random_bits(count):
    t = torch.randn(count, generator=torch.Generator().manual_seed(hvd.rank()))
    out = []
    for dtype in FLOATS:
        out.append(bits(hvd.allreduce(t.to(dtype), op=hvd.Average)).sum().item())
        seeds = [torch.Generator().manual_seed(r) for r in range(hvd.size())]
        exact = sum(torch.randn(count, generator=seed).to(dtype).double() for seed in seeds)
        got = hvd.allreduce(t.to(dtype), op=hvd.Sum).double()
        # One rounding to dtype, sums of 16-bit floats are made in float32.
        torch.testing.assert_close(got, exact, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)
    return out


@pytest.mark.parametrize("transport", ["auto", pytest.param("tcp", marks=pytest.mark.heavy)])
def test_same_bits_on_every_rank_and_in_every_run(pool, transport):
    job = pool(3, HOROVOD_TRANSPORT=transport)
    for count in (7, 5000, 300_001):
        first = job.run(random_bits, count)
        assert all(d == first[0] for d in first)
        assert job.run(random_bits, count) == first


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
    # Some ranks, or all, have nothing.
    assert hvd.allgather(torch.ones(0 if me == 0 else 2, 5)).shape == (2 * (n - 1), 5)
    assert hvd.allgather(torch.ones(0, 5)).shape == (0, 5)
    output, received = hvd.alltoall(torch.ones(3), splits=[3] + [0] * (n - 1))
    assert output.numel() == (3 * n if me == 0 else 0)
    assert received.tolist() == [3 if me == 0 else 0] * n
    # Fewer rows than ranks, and a name that another operation may use at once.
    assert hvd.reducescatter(torch.ones(1, 2), name="again", op=hvd.Sum).shape == (int(me == 0), 2)
    hvd.reducescatter(torch.ones(2 * n), name="again")
    assert hvd.allreduce(torch.ones(1), name="again").item() == 1
    # Unnamed operations match by order.
    unnamed = [hvd.allreduce_async(torch.full((3,), float(i + me)), op=hvd.Sum) for i in range(300)]
    for i, handle in enumerate(unnamed):
        assert hvd.synchronize(handle).tolist() == [float(i * n + n * (n - 1) // 2)] * 3


@on_ranks(3)
def test_barrier_and_objects():
    hvd.barrier()
    assert hvd.broadcast_object({"from": hvd.rank()} if hvd.rank() == 1 else None, root_rank=1) == {"from": 1}
    gathered = hvd.allgather_object(["x"] * hvd.rank() if hvd.rank() % 2 else {"rank": hvd.rank()})
    assert gathered == [["x"] * r if r % 2 else {"rank": r} for r in range(hvd.size())]


def poll_until_done():
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(10), name="late", op=hvd.Sum)
        done_before = hvd.poll(handle)
        hvd.barrier()
    else:
        hvd.barrier()
        done_before = False
        handle = hvd.allreduce_async(torch.ones(10), name="late", op=hvd.Sum)
    while not hvd.poll(handle):
        pass
    assert hvd.synchronize(handle).tolist() == [float(hvd.size())] * 10
    return done_before


def test_poll(pool):
    assert pool(2).run(poll_until_done) == [False, False]


@on_ranks(3)
def test_sparse_allreduce():
    n, me = hvd.size(), hvd.rank()
    rows = torch.tensor([[me, n, me]])  # one of its own, twice, and one shared by all
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
