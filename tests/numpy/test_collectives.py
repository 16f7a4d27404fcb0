"""Collectives beyond the conformance suite: dtypes, splits, process sets, Adasum, compression, objects."""

import numpy as np
import pytest

import horovod.numpy as hvd
from tests import weighted
from tests.numpy.reference import COPIED, assert_same, reduced, value, values
from tests.ranks import on_ranks


@on_ranks(3)
def test_dtypes_without_reductions_and_forms_of_splits():
    rank, size = hvd.rank(), hvd.size()
    for dtype in COPIED:
        # Dim 0 differs between ranks, and is 0 on rank 0.
        parts = [value(r, dtype, (r, 3)) for r in range(size)]
        whole = np.concatenate(parts)
        assert_same(hvd.allgather(parts[rank]), whole)
        for result in hvd.grouped_allgather([parts[rank], parts[rank]]):
            assert_same(result, whole)
        own = value(rank, dtype, (5,))
        assert_same(hvd.broadcast(own, 1), value(1, dtype, (5,)))
        assert hvd.broadcast_(own, 2) is own
        assert_same(own, value(2, dtype, (5,)))
        # Rank r sends i + r rows to rank i; one row is not sent.
        sent = [value(r, dtype, (sum(i + r for i in range(size)) + 1, 2)) for r in range(size)]
        splits = [i + rank for i in range(size)]
        begins = [sum(i + r for i in range(rank)) for r in range(size)]
        expected = np.concatenate([s[b : b + rank + r] for r, (s, b) in enumerate(zip(sent, begins, strict=True))])
        for form in (splits, tuple(splits), np.array(splits, np.int32), np.array(splits, np.int64)):
            output, received = hvd.alltoall(sent[rank], form)
            assert_same(output, expected)
            assert_same(received, np.array([rank + r for r in range(size)], np.int32))


@on_ranks(2)
def test_empty_groups_and_operations_in_place():
    assert hvd.grouped_allreduce([]) == hvd.grouped_reducescatter([]) == []
    assert hvd.grouped_allreduce_async([]).result() == []
    arrays = [np.ones(3), np.ones(2)]
    assert hvd.allreduce_(arrays[0]) is arrays[0]
    assert hvd.allreduce_async_(arrays[0]).result() is arrays[0]
    for result in (hvd.grouped_allreduce_(arrays), hvd.grouped_allreduce_async_(arrays).result()):
        assert all(a is b for a, b in zip(result, arrays, strict=True))


@on_ranks(2)
def test_adasum_and_compression():
    inputs = values(np.float32, (64,))
    own = inputs[hvd.rank()]
    a, b = (x.astype(np.float64) for x in inputs)
    expected = (1 - a @ b / (2 * a @ a)) * a + (1 - a @ b / (2 * b @ b)) * b
    np.testing.assert_allclose(hvd.allreduce(own, op=hvd.Adasum), expected, rtol=1e-5)
    for name in ("none", "fp16", "bf16", "wire_fp16", "wire_bf16", "wire_int8"):
        compression = getattr(hvd.Compression, name)
        result = hvd.allreduce(own, compression=compression, op=hvd.Sum)
        np.testing.assert_allclose(result, reduced(hvd.Sum, inputs), atol=0.1)
        assert result.dtype == own.dtype
        pair = hvd.grouped_allreduce([own, own], compression=compression, op=hvd.Sum)
        np.testing.assert_allclose(pair[1], reduced(hvd.Sum, inputs), atol=0.1)
    whole = hvd.allreduce(np.arange(3), compression=hvd.Compression.fp16, op=hvd.Sum)
    assert_same(whole, 2 * np.arange(3))
    half = hvd.reducescatter(own, compression=hvd.Compression.fp16, op=hvd.Sum)
    np.testing.assert_allclose(half, reduced(hvd.Sum, inputs)[32 * hvd.rank() :][:32], atol=0.1)


@on_ranks(2)
def test_join_and_objects():
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
    with pytest.raises(ValueError, match=r"broadcast_parameters on rank \d: params must be .*, got a int"):
        hvd.broadcast_parameters(3)
    hvd.check_in_sync(arrays, number=3)
    with pytest.raises(RuntimeError, match="weights"):
        hvd.check_in_sync(weights=np.full(3, rank))
    assert hvd.should_stop() is False


@on_ranks(2, HOROVOD_DYNAMIC_PROCESS_SETS="1")
def test_weighted_averages():
    weighted.check(hvd, lambda array, dtype: np.asarray(array).astype(dtype), hvd.add_process_set)
