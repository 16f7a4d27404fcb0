"""Gradients of every operation, as in the API's table.

Eager mode, functions and graphs of TensorFlow 1, first and second order.
"""

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from tests.ranks import on_tensorflow
from tests.tensorflow.reference import assert_close, value

V1 = tf.compat.v1


def tape_gradient(operation, x, seed):
    """Return d sum(operation(x) * seed) / dx, where both may be lists."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = operation(x)
    return tape.gradient(y, x, output_gradients=seed)


def in_a_session(operation, x, seed):
    graph = tf.Graph()
    with graph.as_default():
        inputs = tf.nest.map_structure(lambda t: tf.constant(t.numpy()), x)
        seeds = tf.nest.map_structure(lambda t: tf.constant(t.numpy()), seed)
        result = tf.gradients(operation(inputs), inputs, grad_ys=seeds)
        with V1.Session() as session:
            return tf.nest.pack_sequence_as(x, session.run(result))


def gradients(operation, x, seed):
    """Return the gradient computed in three ways."""
    x, seed = (tf.nest.map_structure(tf.constant, t) for t in (x, seed))
    return [
        tape_gradient(operation, x, seed),
        tf.function(lambda x, seed: tape_gradient(operation, x, seed))(x, seed),
        in_a_session(operation, x, seed),
    ]


def noise(rank, *shape):
    return np.random.default_rng(rank + 100 * len(shape)).normal(size=shape)


def of_reductions():
    rank, size = hvd.rank(), hvd.size()
    x, seeds = noise(rank, 4), [noise(r + 50, 4) for r in range(size)]
    for op, combine in ((hvd.Sum, np.sum), (hvd.Average, np.mean)):
        expected = combine(np.stack(seeds) * 2.0, axis=0) * 3.0
        for result in gradients(
            lambda t, op=op: hvd.allreduce(t, None, "", "", hvd.Compression.none, op, 2.0, 3.0), x, seeds[rank]
        ):
            assert_close(result, expected)
    named = gradients(lambda t: hvd.allreduce(t, op=hvd.Sum, name="x", ignore_name_scope=True), x, seeds[rank])
    for result in named:
        assert_close(result, np.sum(seeds, axis=0))
    group = [noise(rank, 4), noise(rank, 2, 3)]
    group_seeds = [[noise(r + 50, 4), noise(r + 60, 2, 3)] for r in range(size)]
    for results in gradients(lambda t: hvd.grouped_allreduce(t), group, group_seeds[rank]):
        for i, result in enumerate(results):
            assert_close(result, np.mean([seed[i] for seed in group_seeds], axis=0))
    half = gradients(lambda t: hvd.allreduce(t, op=hvd.Sum, compression=hvd.Compression.fp16), x, seeds[rank])
    for result in half:
        assert_close(result, np.sum(seeds, axis=0), 1e-2)

    # One member of a group is unused: its gradient is zero on all ranks.
    def partly(t):
        return hvd.grouped_allreduce(t, op=hvd.Sum)[1]

    first, second = tape_gradient(partly, [tf.constant(t) for t in group], tf.constant(group_seeds[rank][1]))
    assert first is None or not np.any(first)
    assert_close(second, np.sum([seed[1] for seed in group_seeds], axis=0))


def of_gathers():
    rank, size = hvd.rank(), hvd.size()
    rows = [r + 1 for r in range(size)]
    own = slice(sum(rows[:rank]), sum(rows[: rank + 1]))
    seeds = [noise(r, sum(rows), 2) for r in range(size)]
    for result in gradients(lambda t: hvd.allgather(t), noise(rank, rows[rank], 2), seeds[rank]):
        assert_close(result, np.mean(seeds, axis=0)[own])
    group = [noise(rank, rows[rank], 2), noise(rank, rows[rank], 1)]
    group_seeds = [[noise(r, sum(rows), 2), noise(r, sum(rows), 1)] for r in range(size)]
    for results in gradients(lambda t: hvd.grouped_allgather(t, name="g"), group, group_seeds[rank]):
        for i, result in enumerate(results):
            assert_close(result, np.mean([seed[i] for seed in group_seeds], axis=0)[own])

    seeds = [noise(r, 3) for r in range(size)]
    for result in gradients(lambda t: hvd.broadcast(t, 1), noise(rank, 3), seeds[rank]):
        assert_close(result, np.mean(seeds, axis=0) if rank == 1 else np.zeros(3))


def of_scatters():
    rank, size = hvd.rank(), hvd.size()
    rows = size + 1
    parts = np.array_split(np.arange(rows), size)
    seeds = [noise(r, len(parts[r]), 2) for r in range(size)]
    for op, scale in ((hvd.Sum, float(size)), (hvd.Average, 1.0)):
        arguments = {"op": op, "prescale_factor": 2.0, "postscale_factor": 0.25}
        expected = np.concatenate(seeds) * scale * 0.5
        one = gradients(lambda t, a=arguments: hvd.reducescatter(t, **a), noise(rank, rows, 2), seeds[rank])
        for result in one:
            assert_close(result, expected)
        group = [noise(rank, rows, 2), noise(rank, rows, 2)]
        twice = [seeds[rank], seeds[rank]]
        for results in gradients(lambda t, a=arguments: hvd.grouped_reducescatter(t, **a), group, twice):
            for result in results:
                assert_close(result, expected)

    # Rank r sends r + i rows to rank i and keeps one, whose gradient is zero.
    splits = [rank + i for i in range(size)]
    x = noise(rank, sum(splits) + 1, 2)

    def sent_back(r):  # by rank r: its seed for the rows from this rank
        received = [s + r for s in range(size)]
        begin = sum(received[:rank])
        return noise(r, sum(received), 2)[begin : begin + received[rank]]

    seed = noise(rank, sum(r + rank for r in range(size)), 2)
    expected = np.concatenate([*(sent_back(r) for r in range(size)), np.zeros((1, 2))])
    for result in gradients(lambda t: hvd.alltoall(t, splits)[0], x, seed):
        assert_close(result, expected)
    equal = noise(rank, 2 * size, 2)
    back = [noise(r, 2 * size, 2)[2 * rank : 2 * rank + 2] for r in range(size)]
    for result in gradients(lambda t: hvd.alltoall(t), equal, noise(rank, 2 * size, 2)):
        assert_close(result, np.concatenate(back))


def second_order():
    """Return d2/dx2 of sum(allreduce(x, Sum) ** 3), through the gradient's own gradient."""
    rank, size = hvd.rank(), hvd.size()
    x = tf.constant(value(rank, tf.float64, (3,)))

    def both(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(hvd.allreduce(x, op=hvd.Sum) ** 3)
            first = inner.gradient(y, x)
        return first, outer.gradient(first, x)

    total = np.sum([value(r, tf.float64, (3,)) for r in range(size)], axis=0)
    for run in (both, tf.function(both)):
        first, second = run(x)
        assert_close(first, size * 3 * total**2)
        # Every rank's first gradient is the same sum, so the second sums over ranks twice.
        assert_close(second, size * size * 6 * total)
    # An allgather's gradient contains an allgather of row counts and an allreduce; both have gradients.
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.reduce_sum(hvd.allgather(x) ** 2)
        first = inner.gradient(y, x)
    assert_close(first, 2 * x)
    assert_close(outer.gradient(first, x), np.full(3, 2.0 / size))  # each rank differentiates its own part only


def second_order_of_movements():
    """Every rank takes part in the second derivative, even if its first gradient is zero."""
    rank, size = hvd.rank(), hvd.size()
    x = tf.constant(value(rank, tf.float64, (size,)) + 1)

    def second(operation):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(operation(x) ** 3)
            first = inner.gradient(y, x)
        return outer.gradient(first, x)

    total = np.sum([value(r, tf.float64, (size,)) + 1 for r in range(size)], axis=0)
    for run in (second, tf.function(second)):
        expected = 6 * x / size if rank == 0 else tf.zeros_like(x)
        assert_close(run(lambda t: hvd.broadcast(t, 0)), expected)
        # Rank r has element r of the sum; each first gradient is 3 size total^2 there, on every rank.
        assert_close(run(lambda t: hvd.reducescatter(t, op=hvd.Sum)), 6 * size**3 * total)


def no_gradient():
    x = tf.constant([1.0])
    for op in (hvd.Min, hvd.Max, hvd.Product):
        for call in (hvd.allreduce, lambda t, op: hvd.grouped_allreduce([t, t], op=op)[0]):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = call(x, op=op)
            with pytest.raises(NotImplementedError, match="has no gradient"):
                tape.gradient(y, x)


def slices_as_gradient():
    """A gradient that arrives as IndexedSlices is made dense."""
    x = tf.Variable(tf.ones([4, 2]))

    def step():
        with tf.GradientTape() as tape:
            y = tf.gather(hvd.allreduce(x, op=hvd.Sum), [hvd.rank(), hvd.rank()])
        return tape.gradient(y, x)

    expected = np.zeros((4, 2))
    expected[: hvd.size()] = 2.0
    for run in (step, tf.function(step)):
        assert_close(run(), expected)


CHECKS = [
    of_reductions,
    of_gathers,
    of_scatters,
    second_order,
    second_order_of_movements,
    no_gradient,
    slices_as_gradient,
]


@on_tensorflow(2, pytest.param(3, marks=pytest.mark.heavy))
def test_gradients():
    for check in CHECKS:
        check()


@pytest.mark.heavy
@on_tensorflow(2, HOROVOD_ELASTIC="1")
def test_gradients_with_sizes_read_at_run_time():
    for check in CHECKS:
        check()
