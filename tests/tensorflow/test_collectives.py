"""Collectives beyond the conformance suite: one graph of all operations, tensor-like inputs, slices, Adasum, sets."""

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from tests import weighted
from tests.ranks import on_tensorflow
from tests.tensorflow.reference import ALL, assert_close, assert_reduced, assert_same, value, values

OPS = [hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product]


@on_tensorflow(2, pytest.param(3, marks=pytest.mark.heavy))
def test_all_operations_and_dtypes_in_one_function():
    rank, size = hvd.rank(), hvd.size()
    reductions = [(op, dtype) for dtype in ALL for op in OPS if dtype != tf.bool or op != hvd.Average]
    shape = (2 * size + 1, 2)  # the first rank gets one more row of a reducescatter
    begin, end = (0, 3) if rank == 0 else (2 * rank + 1, 2 * rank + 3)

    @tf.function
    def step():
        own = {dtype: tf.constant(value(rank, dtype, shape)) for dtype in ALL}
        return (
            [hvd.allreduce(own[dtype], op=op) for op, dtype in reductions],
            [hvd.allgather(x) for x in own.values()],
            [hvd.broadcast(x, size - 1) for x in own.values()],
            [hvd.alltoall(x[: 2 * size]) for x in own.values()],
            [hvd.reducescatter(x, op=hvd.Sum) for dtype, x in own.items() if dtype != tf.bool],
            hvd.grouped_allreduce([own[tf.float32], own[tf.float32][0]], op=hvd.Max),
        )

    for _ in range(2):
        reduced, gathered, sent, exchanged, scattered, group = step()
        for result, (op, dtype) in zip(reduced, reductions, strict=True):
            assert_reduced(result, op, values(dtype, shape))
        for dtype, *results in zip(ALL, gathered, sent, exchanged, strict=True):
            inputs = values(dtype, shape)
            assert_same(results[0], np.concatenate(inputs))
            assert_same(results[1], inputs[-1])
            assert_same(results[2], np.concatenate([x[2 * rank : 2 * rank + 2] for x in inputs]))
        for result, dtype in zip(scattered, ALL[1:], strict=True):
            assert_reduced(result, hvd.Sum, [x[begin:end] for x in values(dtype, shape)])
        assert_reduced(group[1], hvd.Max, [x[0] for x in values(tf.float32, shape)])


@on_tensorflow(2)
def test_other_tensor_types_and_empty_groups():
    inputs = values(tf.float32, (5,))
    own = inputs[hvd.rank()]
    for form in (own, own.tolist(), tf.Variable(own)):
        assert_reduced(hvd.allreduce(form, op=hvd.Sum), hvd.Sum, inputs)
    with pytest.warns(DeprecationWarning, match="average"):
        assert_reduced(hvd.allreduce(own, average=False), hvd.Sum, inputs)
    empty = []
    assert hvd.grouped_allreduce(empty) is empty
    assert hvd.grouped_allgather([]) == []
    gathered = hvd.allgather(tf.zeros([0 if hvd.rank() else 2, 3]))
    assert gathered.shape == (2, 3)


@on_tensorflow(3)
def test_indexed_slices():
    rank, size = hvd.rank(), hvd.size()

    def slices(r):
        return value(r, tf.float32, (r + 1, 3)), np.arange(r, 2 * r + 1, dtype=np.int64)

    own = tf.IndexedSlices(*map(tf.constant, slices(rank)), dense_shape=tf.constant([10, 3], tf.int64))
    expected = np.concatenate([slices(r)[0] for r in range(size)])
    indices = np.concatenate([slices(r)[1] for r in range(size)])
    dense = tf.constant(value(rank, tf.float32, (4,)))

    def step():
        return hvd.allreduce(own, op=hvd.Sum), hvd.allreduce(own, name="s"), hvd.grouped_allreduce([own, dense])

    for run in (step, tf.function(step)):
        summed, averaged, group = run()
        assert_same(summed.values, expected)
        for result in (averaged, group[0]):
            assert_close(result.values, expected / size)
            assert result.indices.numpy().tolist() == indices.tolist()
            assert result.dense_shape.numpy().tolist() == [10, 3]
        assert_reduced(group[1], hvd.Average, values(tf.float32, (4,)))
    # Each member of a group keeps its own shape.
    other = tf.IndexedSlices(tf.ones([1]), tf.constant([0]), dense_shape=tf.constant([7]))
    first, second = hvd.grouped_allreduce([own, other])
    assert first.dense_shape.numpy().tolist() == [10, 3]
    assert second.dense_shape.numpy().tolist() == [7]
    for dtype, averaged in ((tf.int32, tf.float64), (tf.int64, tf.float64), (tf.float32, tf.float32)):
        whole = hvd.allreduce(tf.IndexedSlices(tf.constant([3, 6], dtype), tf.constant([0, 1])))
        assert whole.values.dtype == averaged, "as TensorFlow divides"
        assert whole.values.numpy().tolist() == [1.0, 2.0] * size
    for wrong in ({"op": hvd.Max}, {"op": hvd.Adasum}, {"prescale_factor": 2.0}, {"postscale_factor": 2.0}):
        with pytest.raises(NotImplementedError, match="IndexedSlices"):
            hvd.allreduce(own, **wrong)
        with pytest.raises(NotImplementedError, match="IndexedSlices"):
            hvd.grouped_allreduce([own, dense], **wrong)


@on_tensorflow(3)
def test_adasum_of_three_ranks_is_refused():
    for call in (hvd.allreduce, lambda x, op: hvd.grouped_allreduce([x], op=op)):
        with pytest.raises(NotImplementedError, match="3 ranks"):
            call(tf.ones([2]), op=hvd.Adasum)


@on_tensorflow(3, HOROVOD_DYNAMIC_PROCESS_SETS="1")
def test_process_sets():
    rank, sets = hvd.rank(), [[0, 2], [1, 2], [1]]
    process_sets = [hvd.add_process_set(ranks) for ranks in sets]
    x = tf.constant([float(rank + 1)])
    for ranks, process_set in zip(sets, process_sets, strict=True):
        included = hvd.process_set_included_op(process_set.process_set_id).numpy()
        assert included == int(rank in ranks)
        assert hvd.size_op(process_set.process_set_id).numpy() == len(ranks)
        if rank not in ranks:
            with pytest.raises(tf.errors.InvalidArgumentError, match=f"allreduce.*rank {rank}|rank {rank}.*allreduce"):
                hvd.allreduce(x, process_set=process_set)
            continue
        total = sum(r + 1.0 for r in ranks)

        @tf.function
        def step(x, process_set=process_set, root=ranks[-1]):
            return (
                hvd.allreduce(x, op=hvd.Sum, process_set=process_set),
                hvd.allreduce(x, process_set=process_set),
                hvd.allgather(x, process_set=process_set),
                hvd.broadcast(x, root, process_set=process_set),
            )

        summed, averaged, gathered, root = step(x)
        assert summed.numpy().tolist() == [total]
        assert_close(averaged, [total / len(ranks)])
        assert gathered.numpy().tolist() == [r + 1.0 for r in sorted(ranks)]
        assert root.numpy().tolist() == [ranks[-1] + 1.0]
        slices = tf.IndexedSlices(x, tf.constant([0]))
        assert_close(hvd.allreduce(slices, process_set=process_set).values, gathered / len(ranks))
    assert hvd.process_set_included_op(1000).numpy() < 0
    for process_set in process_sets:
        assert hvd.remove_process_set(process_set)
        with pytest.raises(ValueError, match="not a registered process set"):
            hvd.allreduce(x, process_set=process_set)


@on_tensorflow(2)
def test_questions():
    assert hvd.rank_op().numpy() == hvd.rank()
    assert hvd.local_rank_op().numpy() == hvd.local_rank()
    assert hvd.local_size_op().numpy() == hvd.local_size()
    assert hvd.size_op().numpy() == hvd.size()
    assert hvd.process_set_included_op().numpy() == 1
    assert tf.function(lambda: hvd.size_op(name="n") * 10 + hvd.rank_op())().numpy() == hvd.size() * 10 + hvd.rank()


def joined():
    """Rank r takes r + 1 steps; the last rank joins last."""
    sums = [hvd.allreduce(tf.ones([3]), op=hvd.Sum).numpy().tolist()[0] for _ in range(hvd.rank() + 1)]
    return sums, int(hvd.join())


def test_join(tf_pool):
    results = tf_pool(3).run(joined)
    assert results == [([3.0], 2), ([3.0, 2.0], 2), ([3.0, 2.0, 1.0], 2)]


@on_tensorflow(2)
def test_weighted_averages():
    weighted.check(hvd, tf.cast, None, ("float16", "bfloat16"), tf.function)
    with pytest.raises(ValueError, match="tensor must be dense with weight"):
        hvd.allreduce(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0])), weight=1)
    own, n = tf.Variable([3.0, 4.0]), 1.0 + 2 * hvd.rank()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(hvd.allreduce(own, weight=n, name="differentiable") * [1.0, 2.0])
    assert_close(tape.gradient(loss, own), 2 * n / 4 * np.array([1.0, 2.0]))
