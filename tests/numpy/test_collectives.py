"""Every collective, dtype and operation against a reference."""

import numpy as np
import pytest

import horovod.numpy as hvd
from tests.numpy.reference import ALL, COPIED, FLOATS, SHAPES, assert_reduced, assert_same, reduced, value, values

OPS = [hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product]
JOBS = [(1, "auto"), (2, "auto"), (3, "auto"), (3, "tcp")]


@pytest.fixture(params=JOBS, ids=lambda job: f"{job[0]}-{job[1]}")
def job(request, pool):
    size, transport = request.param
    return pool(size, HOROVOD_TRANSPORT=transport) if transport != "auto" else pool(size)


def allreduce_matrix():
    cases = [(op, dtype, (3, 5), 1.0, 1.0) for dtype in ALL for op in OPS if dtype.name != "bool" or op != hvd.Average]
    cases += [(hvd.Sum, np.float32, shape, 1.0, 1.0) for shape in SHAPES]
    cases += [(hvd.Sum, dtype, (9,), 0.5, 4.0) for dtype in [*FLOATS, np.int32, np.uint8]]
    cases += [(hvd.Average, np.float64, (4,), 3.0, 0.25), (hvd.Max, np.float32, (4,), 2.0, 1.5)]
    for op, dtype, shape, pre, post in cases:
        inputs = values(dtype, shape)
        mine, how = inputs[hvd.rank()], {"op": op, "prescale_factor": pre, "postscale_factor": post}
        before = mine.copy()
        made = hvd.allreduce(mine, **how)
        assert_reduced(made, op, inputs, pre, post)
        assert_same(mine, before)
        later = hvd.allreduce_async(mine, **how)
        assert_reduced(hvd.synchronize(later), op, inputs, pre, post)
        changed = mine.copy()
        assert hvd.allreduce_(changed, **how) is changed
        assert_same(changed, made)
        changed = mine.copy()
        assert hvd.allreduce_async_(changed, **how).result() is changed
        assert_same(changed, made)


def test_allreduce(job):
    job.run(allreduce_matrix)


def grouped_matrix():
    for dtype in ALL:
        inputs = [values(dtype, shape) for shape in [(3,), (), (0, 2), (2, 2)]]
        mine = [x[hvd.rank()] for x in inputs]
        for op in (hvd.Sum, hvd.Max):
            copies = [x.copy() for x in mine]
            more = [x.copy() for x in mine]
            results = [
                hvd.grouped_allreduce(mine, op=op),
                hvd.grouped_allreduce_async(mine, op=op, name="g").result(),
                hvd.grouped_allreduce_(copies, op=op),
                hvd.grouped_allreduce_async_(more, op=op).result(),
            ]
            for result in results:
                for one, x in zip(result, inputs, strict=True):
                    assert_reduced(one, op, x)
            assert all(a is b for a, b in zip(results[2] + results[3], copies + more, strict=True))
    assert hvd.grouped_allreduce([]) == []
    assert hvd.grouped_allreduce_async([]).result() == []
    for result in hvd.grouped_allreduce([value(hvd.rank(), np.float32, (7,))] * 3, name="a", prescale_factor=2.0):
        assert_reduced(result, hvd.Average, values(np.float32, (7,)), pre=2.0)


def test_grouped_allreduce(job):
    job.run(grouped_matrix)


def movements():
    rank, size = hvd.rank(), hvd.size()
    for dtype in [*ALL, *COPIED]:
        # Dim 0 differs between ranks, and is 0 on rank 0.
        parts = [value(r, dtype, (r, 3)) for r in range(size)]
        whole = np.concatenate(parts)
        assert_same(hvd.allgather(parts[rank]), whole)
        assert_same(hvd.allgather_async(parts[rank], name="a").result(), whole)
        for result in hvd.grouped_allgather([parts[rank], parts[rank]]):
            assert_same(result, whole)
        for shape in ((), (5,), (0, 2)):
            for root in range(size):
                mine, expected = value(rank, dtype, shape), value(root, dtype, shape)
                assert_same(hvd.broadcast(mine, root), expected)
                assert_same(hvd.broadcast_async(mine, root, name="b").result(), expected)
                assert hvd.broadcast_(mine, root) is mine
                assert_same(mine, expected)
                assert hvd.broadcast_async_(mine, root).result() is mine
        even = [value(r, dtype, (2 * size, 2)) for r in range(size)]
        assert_same(hvd.alltoall(even[rank]), np.concatenate([e[2 * rank : 2 * rank + 2] for e in even]))
        # Rank r sends i + r rows to rank i; one row stays behind.
        sent = [value(r, dtype, (sum(i + r for i in range(size)) + 1, 2)) for r in range(size)]
        splits = [i + rank for i in range(size)]
        begins = [sum(i + r for i in range(rank)) for r in range(size)]
        came = np.concatenate([s[b : b + rank + r] for r, (s, b) in enumerate(zip(sent, begins, strict=True))])
        for given in (splits, tuple(splits), np.array(splits, np.int32), np.array(splits, np.int64)):
            output, received = hvd.alltoall(sent[rank], given)
            assert_same(output, came)
            assert_same(received, np.array([rank + r for r in range(size)], np.int32))
        output, received = hvd.alltoall_async(sent[rank], splits, name="t").result()
        assert_same(output, came)
        output, received = hvd.alltoall_async(even[rank]).result()
        assert received.tolist() == [2] * size


def test_what_moves(job):
    job.run(movements)


def scatters():
    rank, size = hvd.rank(), hvd.size()
    for dtype in ALL[1:]:
        for rows in (0, 1, 7, 2 * size):
            inputs = values(dtype, (rows, 2))
            each = [rows // size + (r < rows % size) for r in range(size)]
            mine = slice(sum(each[:rank]), sum(each[: rank + 1]))
            for op in (hvd.Sum, hvd.Average):
                for result in (
                    hvd.reducescatter(inputs[rank], op=op),
                    hvd.reducescatter_async(inputs[rank], op=op, name="r").result(),
                    *hvd.grouped_reducescatter([inputs[rank]] * 2, op=op),
                    *hvd.grouped_reducescatter_async([inputs[rank]], op=op, name="g").result(),
                ):
                    assert_reduced(result, op, [x[mine] for x in inputs])
    assert hvd.grouped_reducescatter([]) == []


def test_reducescatter(job):
    job.run(scatters)


def sets():
    even = hvd.add_process_set(range(0, hvd.size(), 2))
    both = hvd.add_process_set([0, 1])
    rank, mine = hvd.rank(), np.array([hvd.rank() + 1.0])
    if rank % 2 == 0:
        inputs = [np.array([r + 1.0]) for r in even.ranks]
        assert_reduced(hvd.allreduce(mine, op=hvd.Sum, process_set=even), hvd.Sum, inputs)
        assert_same(hvd.allgather(mine, process_set=even), np.concatenate(inputs))
        assert hvd.broadcast(mine, 2, process_set=even).tolist() == [3.0]
        assert hvd.allgather_object(rank, process_set=even) == even.ranks
        hvd.barrier(even)
    else:
        with pytest.raises(ValueError, match=r"allreduce: rank 1 is not in ProcessSet"):
            hvd.allreduce(mine, process_set=even)
    if rank < 2:
        handles = [hvd.grouped_allreduce_async([mine, mine], op=hvd.Max, process_set=both) for _ in range(3)]
        assert [hvd.synchronize(handle)[1].tolist() for handle in handles] == [[2.0]] * 3
    hvd.barrier()
    assert hvd.remove_process_set(even)
    assert hvd.remove_process_set(both)


def test_process_sets(pool):
    pool(3, HOROVOD_DYNAMIC_PROCESS_SETS="1").run(sets)


def adasum_and_compression():
    inputs = values(np.float32, (64,))
    mine = inputs[hvd.rank()]
    a, b = (x.astype(np.float64) for x in inputs)
    expected = (1 - a @ b / (2 * a @ a)) * a + (1 - a @ b / (2 * b @ b)) * b
    np.testing.assert_allclose(hvd.allreduce(mine, op=hvd.Adasum), expected, rtol=1e-5)
    for name in ("none", "fp16", "bf16", "wire_fp16", "wire_bf16", "wire_int8"):
        compression = getattr(hvd.Compression, name)
        result = hvd.allreduce(mine, compression=compression, op=hvd.Sum)
        np.testing.assert_allclose(result, reduced(hvd.Sum, inputs), atol=0.1)
        assert result.dtype == mine.dtype
        pair = hvd.grouped_allreduce([mine, mine], compression=compression, op=hvd.Sum)
        np.testing.assert_allclose(pair[1], reduced(hvd.Sum, inputs), atol=0.1)
    whole = hvd.allreduce(np.arange(3), compression=hvd.Compression.fp16, op=hvd.Sum)
    assert_same(whole, 2 * np.arange(3))
    half = hvd.reducescatter(mine, compression=hvd.Compression.fp16, op=hvd.Sum)
    np.testing.assert_allclose(half, reduced(hvd.Sum, inputs)[32 * hvd.rank() :][:32], atol=0.1)


def test_adasum_and_compression(pool):
    pool(2).run(adasum_and_compression)


def join_and_objects():
    rank = hvd.rank()
    for _ in range(1 + rank):
        hvd.allreduce(np.ones(3), op=hvd.Sum, name="x")
    assert hvd.join() in range(hvd.size())
    assert hvd.broadcast_object({"a": np.arange(3)} if rank == 1 else None, 1)["a"].tolist() == [0, 1, 2]
    assert hvd.allgather_object("abc"[: rank + 1]) == ["a", "ab"]
    arrays = {"b": np.full((2, 3), rank), "a": np.full((4, 4), rank, np.float32)[::2].T}
    hvd.broadcast_parameters(arrays, 1)
    assert all((array == 1).all() for array in arrays.values())
    hvd.broadcast_parameters([arrays["a"], np.zeros(3)], 0)
    with pytest.raises(ValueError, match=r"broadcast_parameters on rank \d: params is a int"):
        hvd.broadcast_parameters(3)
    hvd.check_in_sync(arrays, number=3)
    with pytest.raises(RuntimeError, match="weights"):
        hvd.check_in_sync(weights=np.full(3, rank))
    assert hvd.should_stop() is False


def test_join_and_objects(pool):
    pool(2).run(join_and_objects)
