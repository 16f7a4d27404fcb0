"""Every collective and dtype against NumPy."""

import concurrent.futures
import threading
import time

import mxnet as mx
import numpy as np
import pytest

import horovod.mxnet as hvd
from horovod.mxnet.gathered import arriving
from tests.mxnet.reference import BFLOAT16, DTYPES, array, assert_same, values

JOBS = [(1, "auto"), (2, "auto"), (3, "auto"), (3, "tcp")]


@pytest.fixture(params=JOBS, ids=lambda job: f"{job[0]}-{job[1]}")
def job(request, pool):
    size, transport = request.param
    return pool(size, HOROVOD_TRANSPORT=transport) if transport != "auto" else pool(size)


def reduced(op, all_values):
    dtype = all_values[0].dtype
    stacked = np.stack(all_values)
    if dtype.name == "bool":
        return stacked.all(0) if op in (hvd.Min, hvd.Product) else stacked.any(0)
    if op == hvd.Average:
        return np.trunc(stacked.astype(np.float64).sum(0) / len(all_values)).astype(dtype)
    function = {hvd.Sum: np.sum, hvd.Min: np.min, hvd.Max: np.max, hvd.Product: np.prod}[op]
    return function(stacked, 0).astype(dtype)


def allreduce_matrix():
    rank, size = hvd.rank(), hvd.size()
    pending = []
    for dtype in DTYPES:
        for op in (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product):
            if op == hvd.Average and (dtype == "bool" or dtype.startswith("float")):
                continue  # floats are averaged below
            inputs = values(dtype, (3, 4), size)
            mine, changed = array(inputs[rank]), array(inputs[rank])
            out = hvd.allreduce(mine, op=op)
            assert hvd.allreduce_(changed, op=op) is changed
            pending += [(mine, inputs[rank]), (out, reduced(op, inputs)), (changed, reduced(op, inputs))]
    for given, wanted in pending:  # only now anything is waited for
        assert_same(given, wanted)
    for dtype in ("float16", "float32", "float64"):
        inputs = values(dtype, (1000,), size)
        mean = np.stack(inputs).astype(np.float64).mean(0)
        np.testing.assert_allclose(hvd.allreduce(array(inputs[rank])).asnumpy(), mean, 1e-3)
        scaled = hvd.allreduce(array(inputs[rank]), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
        np.testing.assert_allclose(scaled.asnumpy(), np.sum(inputs, 0) * 2, 1e-3)
    with pytest.warns(DeprecationWarning, match="average"):
        assert_same(hvd.allreduce(array(np.float32([1 + rank])), average=False), np.float32([size * (size + 1) / 2]))


def test_allreduce(job):
    job.run(allreduce_matrix)


def bfloat16():
    rank, size = hvd.rank(), hvd.size()
    mine = mx.nd.amp_cast(mx.nd.array([1.5 + rank, -2.0]), dtype=BFLOAT16)
    for out in (hvd.allreduce(mine, op=hvd.Sum), hvd.allgather(mine), hvd.broadcast(mine, 0)):
        assert out.dtype == BFLOAT16
    back = mx.nd.amp_cast(hvd.allreduce(mine, op=hvd.Sum), dtype="float32").asnumpy()
    assert back.tolist() == [sum(1.5 + r for r in range(size)), -2.0 * size]
    gathered = mx.nd.amp_cast(hvd.allgather(mine), dtype="float32").asnumpy()
    assert gathered.tolist() == [x for r in range(size) for x in (1.5 + r, -2.0)]


def test_bfloat16(pool):
    pool(2).run(bfloat16)


def grouped():
    rank, size = hvd.rank(), hvd.size()
    inputs = [values(dtype, shape, size) for dtype, shape in (("float32", (3,)), ("int32", (2, 2)), ("float64", (1,)))]
    mine = [array(value[rank]) for value in inputs]
    for name in (None, "a group"):
        for out, value in zip(hvd.grouped_allreduce(mine, op=hvd.Sum, name=name), inputs, strict=True):
            assert_same(out, reduced(hvd.Sum, value))
    assert hvd.grouped_allreduce([]) == hvd.grouped_allgather([]) == hvd.grouped_reducescatter([]) == []
    for out, value in zip(hvd.grouped_allgather(mine), inputs, strict=True):
        assert_same(out, np.concatenate(value))
    for out, value in zip(hvd.grouped_reducescatter(mine, op=hvd.Sum), inputs, strict=True):
        assert_same(out, np.array_split(reduced(hvd.Sum, value), size)[rank]) if out.size else None
    assert hvd.grouped_allreduce_(mine, op=hvd.Max) == mine
    for out, value in zip(mine, inputs, strict=True):
        assert_same(out, reduced(hvd.Max, value))


def gathering():
    rank, size = hvd.rank(), hvd.size()
    for dtype in DTYPES:
        inputs = [values(dtype, (r + 1, 3), 1, seed=r)[0] for r in range(size)]
        out = hvd.allgather(array(inputs[rank]), name=f"of {dtype}")
        assert isinstance(out, mx.nd.NDArray)
        assert out.shape == (sum(range(size + 1)), 3)
        assert_same(out, np.concatenate(inputs))
        for root in range(size):
            mine = array(values(dtype, (2, 2), 1, seed=rank)[0])
            wanted = values(dtype, (2, 2), 1, seed=root)[0]
            assert_same(hvd.broadcast(mine, root), wanted)
            assert hvd.broadcast_(mine, root) is mine
            assert_same(mine, wanted)
        rows = [values(dtype, (2 * size, 2), 1, seed=10 + r)[0] for r in range(size)]
        assert_same(hvd.alltoall(array(rows[rank])), np.concatenate([x[2 * rank : 2 * rank + 2] for x in rows]))
        # Rank r sends r + 1 rows to rank 0 and one to everybody else; what is left stays.
        splits = [rank + 1, *[1] * (size - 1)]
        for given in (splits, mx.nd.array(splits, dtype="int32"), np.int32(splits)):
            out, received = hvd.alltoall(array(rows[rank]), given)
            parts = [x[:r] if rank == 0 else x[r + rank - 1 :][:1] for r, x in enumerate(rows, 1)]
            assert_same(received, np.int32([len(part) for part in parts]))
            assert_same(out, np.concatenate(parts))
        if dtype != "bool":
            out = hvd.reducescatter(array(rows[rank][: size + 1]), op=hvd.Sum)
            assert_same(out, np.array_split(np.sum([x[: size + 1] for x in rows], 0).astype(dtype), size)[rank])


def test_gathering_broadcast_alltoall_reducescatter(job):
    job.run(gathering)


def results_that_arrive():
    """They are used like any other array."""
    rank, size = hvd.rank(), hvd.size()
    out = hvd.allgather(mx.nd.ones((2, 2)) * rank)
    assert (out * 2 + out).sum().asscalar() == 12 * sum(range(size))
    assert out[2 * size - 1].asnumpy().tolist() == [size - 1] * 2
    out[:] = 5
    assert "5." in repr(out)
    assert out.copy().asnumpy().max() == 5
    assert hvd.allreduce(hvd.allgather(mx.nd.ones((1,))), op=hvd.Sum).asnumpy().tolist() == [size] * size
    for _ in range(3):
        hvd.allgather(mx.nd.ones((1000,)))  # never used
    weight = mx.nd.ones((1,))
    weight.attach_grad()
    with mx.autograd.record():
        loss = (hvd.allgather(mx.nd.ones((2,)) * (rank + 1)) * weight).sum()
    loss.backward()
    assert weight.grad.asscalar() == size * (size + 1)


def test_results_that_arrive(pool):
    pool(2).run(results_that_arrive)


def test_two_threads_use_a_result_first():
    calls, both = [], threading.Barrier(2)

    def make():
        calls.append(mx.nd.ones((2,)))
        time.sleep(0.3)  # the other thread comes in between
        return calls[-1]

    result = arriving(mx.nd.ones((1,)), make)

    def use(_):
        both.wait(20)
        return result.handle.value

    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        handles = list(executor.map(use, range(2)))
    assert len(calls) == 1
    assert handles == [calls[0].handle.value] * 2


def numpy_arrays():
    rank, size = hvd.rank(), hvd.size()
    mx.npx.set_np()
    try:
        for shape in ((2, 3), (), (0, 3)):
            mine = mx.np.ones(shape) * (rank + 1)
            out = hvd.allreduce(mine, op=hvd.Sum)
            assert type(out) is mx.np.ndarray
            assert out.shape == shape
            np.testing.assert_array_equal(out.asnumpy(), np.ones(shape) * size * (size + 1) / 2)
            np.testing.assert_array_equal(hvd.broadcast_(mine, 0).asnumpy(), np.ones(shape))
        out = hvd.allgather(mx.np.ones((rank, 2)))
        assert isinstance(out, mx.np.ndarray)
        assert out.shape == (sum(range(size)), 2)
        assert float(out.sum()) == 2 * sum(range(size))
        out, received = hvd.alltoall(mx.np.ones((size,)) * rank, [1] * size)
        assert out.asnumpy().tolist() == list(range(size))
        assert received.asnumpy().tolist() == [1] * size
        assert hvd.reducescatter(mx.np.ones((1, 2)), op=hvd.Sum).shape == ((1, 2) if rank == 0 else (0, 2))
        scalar = hvd.allgather(mx.np.ones(()))
        with pytest.raises(mx.base.MXNetError, match=r"allgather.*rank"):
            scalar.asnumpy()
        with pytest.raises(ValueError, match="reducescatter: the tensor is a scalar"):
            hvd.reducescatter(mx.np.ones(()))
    finally:
        mx.npx.reset_np()


def test_arrays_of_mx_np(pool):
    pool(2).run(numpy_arrays)


def test_groups(job):
    job.run(grouped)


def views():
    rank, size = hvd.rank(), hvd.size()
    base = mx.nd.arange(12).reshape((4, 3)) + 100 * rank
    hvd.allreduce_(base[1:3], op=hvd.Sum)
    wanted = np.arange(12).reshape(4, 3) + 100.0 * rank
    wanted[1:3] = np.sum([np.arange(12).reshape(4, 3)[1:3] + 100.0 * r for r in range(size)], 0)
    np.testing.assert_array_equal(base.asnumpy(), wanted)
    # Parts of one array in one operation: MXNet's engine knows them as one.
    base = mx.nd.ones((4, 3))
    hvd.grouped_allreduce_([base[0:1], base[2:4]], op=hvd.Sum)
    assert base.asnumpy()[:, 0].tolist() == [size, 1, size, size]
    outs = hvd.grouped_allreduce([base, base], op=hvd.Max)
    assert [out.asnumpy().max() for out in outs] == [size, size]


def test_views(pool):
    pool(2).run(views)


def process_sets():
    from horovod.mxnet import add_process_set, remove_process_set

    rank = hvd.rank()
    both = add_process_set([0, 2])
    if rank != 1:
        assert hvd.allreduce(mx.nd.array([rank]), op=hvd.Sum, process_set=both).asscalar() == 2
        assert hvd.allgather(mx.nd.array([rank]), process_set=both).asnumpy().tolist() == [0, 2]
        assert hvd.broadcast(mx.nd.array([rank]), 2, process_set=both).asscalar() == 2
        assert hvd.reducescatter(mx.nd.ones((3,)), op=hvd.Sum, process_set=both).shape == ((2,) if rank == 0 else (1,))
        assert hvd.allgather_object(rank, process_set=both) == [0, 2]
    else:
        with pytest.raises(mx.base.MXNetError, match=r"allreduce: rank 1 is not in ProcessSet"):
            hvd.allreduce(mx.nd.array([1]), process_set=both)
    with pytest.raises(ValueError, match=r"root_rank is 1; accepted are the ranks of ProcessSet|rank 1 is not in"):
        hvd.broadcast(mx.nd.array([rank]), 1, process_set=both)
    assert remove_process_set(both)
    with pytest.raises(ValueError, match=f"rank {rank}.*not a registered process set"):
        hvd.allreduce(mx.nd.array([1]), process_set=both)


def test_process_sets(pool):
    pool(3, HOROVOD_DYNAMIC_PROCESS_SETS="1").run(process_sets)


def adasum():
    mine = mx.nd.array([1.0, 0.0]) if hvd.rank() == 0 else mx.nd.array([0.0, 1.0])
    assert hvd.allreduce(mine, op=hvd.Adasum).asnumpy().tolist() == [1.0, 1.0]
    alike = mx.nd.array([2.0, 4.0])
    np.testing.assert_allclose(hvd.allreduce(alike, op=hvd.Adasum).asnumpy(), [2.0, 4.0], 1e-6)


def test_adasum(pool):
    pool(2).run(adasum)


def refused_adasum():
    with pytest.raises(NotImplementedError, match="3 ranks"):
        hvd.allreduce(mx.nd.ones((2,)), op=hvd.Adasum)


def test_adasum_of_three(pool):
    pool(3).run(refused_adasum)
