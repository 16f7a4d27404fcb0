"""Every collective, dtype and operation against a reference, at several world sizes and over TCP."""

import random

import pytest
import torch

import horovod.torch as hvd
from tests.torch.reference import ALL, FLOATS, INTS, SHAPES, assert_reduced, bits, same_bits, value

OPS = [hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product]
JOBS = [(2, "auto"), (3, "auto"), (4, "auto"), (3, "tcp")]


@pytest.fixture(params=JOBS, ids=lambda job: f"{job[0]}-{job[1]}")
def job(request, pool):
    size, transport = request.param
    return pool(size, HOROVOD_TRANSPORT=transport) if transport != "auto" else pool(size)


def inputs(dtype, shape):
    return [value(r, dtype, shape) for r in range(hvd.size())]


def allreduce_matrix():
    # Everything in flight at once, in another order on every rank, matched by name.
    cases = [
        (dtype, shape, op)
        for dtype in ALL
        for shape in SHAPES
        for op in OPS
        if not (dtype is torch.bool and op == hvd.Average)
    ]
    random.Random(hvd.rank()).shuffle(cases)
    issued = []
    for dtype, shape, op in cases:
        t = value(hvd.rank(), dtype, shape)
        name = f"{dtype}.{shape}.{op}"
        in_place = (len(issued) + hvd.rank()) % 2 == 0
        start = hvd.allreduce_async_ if in_place else hvd.allreduce_async
        issued.append((start(t, name=name, op=op), dtype, shape, op, t, in_place))
    digests = {}
    for handle, dtype, shape, op, t, in_place in issued:
        out = hvd.synchronize(handle)
        assert (out is t) == in_place
        assert_reduced(out, op, inputs(dtype, shape))
        if not in_place:
            assert same_bits(t, value(hvd.rank(), dtype, shape))
        digests[f"{dtype}.{shape}.{op}"] = bits(out).tolist()
    return digests


def test_allreduce(job):
    digests = job.run(allreduce_matrix)
    assert all(d == digests[0] for d in digests), "the ranks' bits differ"


def allreduce_random_bits(count):
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


def test_same_bits_on_every_rank_and_in_every_run(job):
    for count in (7, 5000, 300_001):
        first = job.run(allreduce_random_bits, count)
        assert all(d == first[0] for d in first)
        assert job.run(allreduce_random_bits, count) == first


def scaled_allreduce():
    for dtype in FLOATS + [torch.int32, torch.int64]:
        for op in (hvd.Sum, hvd.Average):
            for pre, post in ((0.5, 1.0), (1.0, 3.0), (2.0, 0.25)):
                t = value(hvd.rank(), dtype, (9,))
                out = hvd.allreduce(t, op=op, prescale_factor=pre, postscale_factor=post)
                assert_reduced(out, op, inputs(dtype, (9,)), pre, post)


def test_scale_factors(job):
    job.run(scaled_allreduce)


def overflowing_sum():
    t = torch.full((5,), 100, dtype=torch.int8)
    want = (100 * hvd.size() + 128) % 256 - 128
    assert hvd.allreduce(t, op=hvd.Sum).tolist() == [want] * 5


def test_integer_sums_wrap(job):
    job.run(overflowing_sum)


def large_allreduce():
    for count in (1 << 16, (1 << 20) + 3, 5_000_011):
        t = torch.arange(count, dtype=torch.float32) % 1000 + hvd.rank()
        n = hvd.size()
        want = (torch.arange(count, dtype=torch.float32) % 1000) * n + n * (n - 1) // 2
        assert torch.equal(hvd.allreduce_(t, op=hvd.Sum), want)


def test_large(job):
    job.run(large_allreduce)


def grouped():
    shapes = [(3,), (0,), (2, 2), (), (1031,)]
    for op in (hvd.Sum, hvd.Average):
        mine = [value(hvd.rank(), torch.float32, s) for s in shapes]
        for out in (
            hvd.grouped_allreduce(mine, op=op),
            hvd.grouped_allreduce(mine, op=op, name="g"),
            hvd.synchronize(hvd.grouped_allreduce_async(mine, op=op)),
            hvd.grouped_allreduce_([t.clone() for t in mine], op=op),
        ):
            for t, s in zip(out, shapes, strict=True):
                assert_reduced(t, op, inputs(torch.float32, s))
    mixed = [torch.ones(3), torch.ones(2, dtype=torch.int32), torch.ones(4, dtype=torch.float16)]
    out = hvd.grouped_allreduce(mixed, op=hvd.Sum)
    assert [t.dtype for t in out] == [t.dtype for t in mixed]
    assert all((t == hvd.size()).all() for t in out)
    # Groups of several ranks in another order.
    names = [f"set{i}" for i in range(6)]
    random.Random(hvd.rank()).shuffle(names)
    handles = {}
    for n in names:
        pair = [torch.full((2,), float(n[3:])), torch.ones(1)]
        handles[n] = hvd.grouped_allreduce_async(pair, name=n, op=hvd.Sum)
    for n, h in handles.items():
        assert hvd.synchronize(h)[0].tolist() == [float(n[3:]) * hvd.size()] * 2
    rows = [hvd.rank() + 1, 0, 2]
    gathered = hvd.grouped_allgather([torch.full((r, 2), float(hvd.rank())) for r in rows])
    assert [g.shape[0] for g in gathered] == [sum(range(1, hvd.size() + 1)), 0, 2 * hvd.size()]
    scattered = hvd.grouped_reducescatter([torch.ones(4 * hvd.size(), 2), torch.ones(hvd.size())], op=hvd.Sum)
    assert [tuple(t.shape) for t in scattered] == [(4, 2), (1,)]
    assert all((t == hvd.size()).all() for t in scattered)


def test_grouped(job):
    job.run(grouped)


def allgather_all():
    for dtype in ALL:
        for tail in ((), (3,), (2, 2)):
            rows = [2 * r + 1 for r in range(hvd.size())]
            mine = value(hvd.rank(), dtype, (rows[hvd.rank()], *tail))
            want = torch.cat([value(r, dtype, (rows[r], *tail)) for r in range(hvd.size())])
            assert same_bits(hvd.allgather(mine), want)
            assert same_bits(hvd.synchronize(hvd.allgather_async(mine, name="g")), want)
    # Some ranks, or all, have nothing.
    mine = torch.ones(0 if hvd.rank() == 0 else 2, 5)
    assert hvd.allgather(mine).shape == (2 * (hvd.size() - 1), 5)
    assert hvd.allgather(torch.ones(0, 5)).shape == (0, 5)
    out = hvd.allgather(torch.ones(2))
    out += 1  # the result is an ordinary, writable tensor
    assert out.sum() == 4 * hvd.size()


def test_allgather(job):
    job.run(allgather_all)


def broadcast_all():
    for dtype in ALL:
        for shape in SHAPES:
            for root in range(hvd.size()):
                mine = value(hvd.rank(), dtype, shape)
                want = value(root, dtype, shape)
                assert same_bits(hvd.broadcast(mine, root), want)
                assert same_bits(mine, value(hvd.rank(), dtype, shape))
                assert hvd.broadcast_(mine, root, name="b") is mine
                assert same_bits(mine, want)
    big = torch.arange(1_000_003.0) * (hvd.rank() + 1)
    assert torch.equal(hvd.broadcast(big, hvd.size() - 1), torch.arange(1_000_003.0) * hvd.size())


def test_broadcast(job):
    job.run(broadcast_all)


def alltoall_all():
    n, me = hvd.size(), hvd.rank()
    for dtype in ALL:
        mine = value(me, dtype, (2 * n, 3))
        want = torch.cat([value(r, dtype, (2 * n, 3))[2 * me : 2 * me + 2] for r in range(n)])
        assert same_bits(hvd.alltoall(mine), want)
    # Rank r sends r + i rows to rank i and keeps one.
    rows = [sum(r + i for i in range(n)) + 1 for r in range(n)]
    mine = value(me, torch.int64, (rows[me], 2))
    splits = [me + i for i in range(n)]
    output, received = hvd.alltoall(mine, splits=torch.tensor(splits, dtype=torch.int32), name="s")
    assert received.tolist() == [r + me for r in range(n)]
    parts = []
    for r in range(n):
        begin = sum(r + i for i in range(me))
        parts.append(value(r, torch.int64, (rows[r], 2))[begin : begin + r + me])
    assert same_bits(output, torch.cat(parts))
    # Everything to rank 0; nothing at all.
    output, received = hvd.alltoall(torch.ones(3), splits=[3] + [0] * (n - 1))
    assert output.numel() == (3 * n if me == 0 else 0)
    assert received.tolist() == [3 if me == 0 else 0] * n
    assert hvd.alltoall(torch.ones(0, 2)).shape == (0, 2)


def test_alltoall(job):
    job.run(alltoall_all)


def reducescatter_all():
    n, me = hvd.size(), hvd.rank()
    for dtype in FLOATS + INTS:
        for rows in (n, 3 * n + 1, 1, 0, 101):
            quotient, longer = divmod(rows, n)
            begin = me * quotient + min(me, longer)
            end = begin + quotient + (me < longer)
            for op in (hvd.Sum, hvd.Average):
                out = hvd.reducescatter(value(me, dtype, (rows, 2)), op=op)
                assert_reduced(out, op, [t[begin:end] for t in inputs(dtype, (rows, 2))])
    out = hvd.reducescatter(torch.full((n,), 2.0), op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    assert out.tolist() == [3.0 * n]
    # The name may be used by another operation at once.
    hvd.reducescatter(torch.ones(n), name="again")
    hvd.reducescatter(torch.ones(2 * n), name="again")
    assert hvd.allreduce(torch.ones(1), name="again").item() == 1


def test_reducescatter(job):
    job.run(reducescatter_all)


def control():
    hvd.barrier()
    assert hvd.broadcast_object({"from": hvd.rank()} if hvd.rank() == 1 else None, root_rank=1) == {"from": 1}
    objects = hvd.allgather_object(["x"] * hvd.rank() if hvd.rank() % 2 else {"rank": hvd.rank()})
    assert objects == [["x"] * r if r % 2 else {"rank": r} for r in range(hvd.size())]
    big = hvd.broadcast_object(list(range(200_000)) if hvd.rank() == 0 else None, name="big")
    assert len(big) == 200_000
    assert hvd.broadcast_object(None) is None


def test_barrier_and_objects(job):
    job.run(control)


def many_unnamed():
    handles = [hvd.allreduce_async(torch.full((3,), float(i + hvd.rank())), op=hvd.Sum) for i in range(300)]
    n = hvd.size()
    for i, handle in enumerate(handles):
        assert hvd.synchronize(handle).tolist() == [float(i * n + n * (n - 1) // 2)] * 3


def test_unnamed_operations_match_by_order(job):
    job.run(many_unnamed)


def poll_until_done():
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(10), name="late", op=hvd.Sum)
        done_before = hvd.poll(handle)
        hvd.barrier()
    else:
        hvd.barrier()
        done_before = False
        handle = hvd.allreduce_async(torch.ones(10), name="late", op=hvd.Sum)
    polls = 0
    while not hvd.poll(handle):
        polls += 1
        assert polls < 10_000_000
    assert hvd.synchronize(handle).tolist() == [float(hvd.size())] * 10
    return done_before


def test_poll(pool):
    assert pool(2).run(poll_until_done) == [False, False]


def sparse():
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
    mine = t if me == 0 else empty
    assert hvd.sparse_allreduce_async(mine, "some", hvd.Sum)().to_dense().sum() == 6
    with pytest.raises(ValueError, match="Min"):
        hvd.sparse_allreduce_async(t, "min", hvd.Min)
    with pytest.raises(ValueError, match="sparse_coo"):
        hvd.sparse_allreduce_async(torch.ones(2), "dense", hvd.Sum)


def test_sparse_allreduce(pool):
    pool(3).run(sparse)
