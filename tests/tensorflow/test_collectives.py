"""Every collective, dtype and operation against a reference, eager and in a tf.function."""

import random

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from tests.tensorflow.reference import (
    ALL,
    FLOATS,
    INTS,
    SHAPES,
    assert_close,
    assert_reduced,
    assert_same,
    value,
    values,
)

OPS = [hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product]
JOBS = [(2, "auto"), pytest.param((3, "auto"), marks=pytest.mark.heavy), (3, "tcp")]


@pytest.fixture(params=JOBS, ids=lambda job: f"{job[0]}-{job[1]}")
def job(request, tf_pool):
    size, transport = request.param
    return tf_pool(size, HOROVOD_TRANSPORT=transport) if transport != "auto" else tf_pool(size)


def reductions():
    """[(op, dtype, shape, prescale, postscale)]"""
    cases = [(op, dtype, (3, 5), 1.0, 1.0) for dtype in ALL for op in OPS if dtype != tf.bool or op != hvd.Average]
    cases += [(hvd.Sum, tf.float32, shape, 1.0, 1.0) for shape in SHAPES]
    cases += [(hvd.Sum, dtype, (9,), 0.5, 4.0) for dtype in [*FLOATS, tf.int32, tf.uint8]]
    return [*cases, (hvd.Average, tf.float64, (4,), 3.0, 0.25), (hvd.Max, tf.float32, (4,), 2.0, 1.5)]


def allreduce_matrix():
    cases = reductions()
    inputs = [values(dtype, shape) for _, dtype, shape, _, _ in cases]

    def step():
        return [
            hvd.allreduce(tf.constant(x[hvd.rank()]), op=op, prescale_factor=pre, postscale_factor=post)
            for x, (op, _, _, pre, post) in zip(inputs, cases, strict=True)
        ]

    for run in (step, tf.function(step)):
        for result, x, (op, _, _, pre, post) in zip(run(), inputs, cases, strict=True):
            assert_reduced(result, op, x, pre, post)
    # Arguments in other forms.
    mine = values(tf.float32, (5,))
    for form in (mine[hvd.rank()], mine[hvd.rank()].tolist(), tf.Variable(mine[hvd.rank()])):
        assert_reduced(hvd.allreduce(form, op=hvd.Sum), hvd.Sum, mine)
    with pytest.warns(DeprecationWarning, match="average"):
        assert_reduced(hvd.allreduce(mine[hvd.rank()], average=False), hvd.Sum, mine)


def test_allreduce(job):
    job.run(allreduce_matrix)


def grouped_matrix():
    for dtype in ALL:
        inputs = [values(dtype, shape) for shape in [(3,), (), (0, 2), (2, 2)]]
        mine = [tf.constant(x[hvd.rank()]) for x in inputs]
        for op in (hvd.Sum, hvd.Max):
            for run in (hvd.grouped_allreduce, tf.function(hvd.grouped_allreduce)):
                for result, x in zip(run(mine, op=op), inputs, strict=True):
                    assert_reduced(result, op, x)
    empty = []
    assert hvd.grouped_allreduce(empty) is empty
    mine = [tf.constant(value(hvd.rank(), tf.float32, (7,))) for _ in range(3)]
    for result in hvd.grouped_allreduce(mine, name="a group", prescale_factor=2.0):
        assert_reduced(result, hvd.Average, values(tf.float32, (7,)), pre=2.0)


def test_grouped_allreduce(job):
    job.run(grouped_matrix)


def allgather_matrix():
    rank, size = hvd.rank(), hvd.size()

    def rows(r, dtype, tail):
        return value(r, dtype, (2 * r + 1, *tail))

    def step():
        gathered = [hvd.allgather(tf.constant(rows(rank, dtype, (3,)))) for dtype in ALL]
        group = hvd.grouped_allgather([tf.constant(rows(rank, tf.int64, tail)) for tail in [(), (2,), (1, 2)]])
        return gathered, group

    for run in (step, tf.function(step)):
        gathered, group = run()
        for result, dtype in zip(gathered, ALL, strict=True):
            assert_same(result, np.concatenate([rows(r, dtype, (3,)) for r in range(size)]))
        for result, tail in zip(group, [(), (2,), (1, 2)], strict=True):
            assert_same(result, np.concatenate([rows(r, tf.int64, tail) for r in range(size)]))
    assert hvd.grouped_allgather([]) == []
    empty = hvd.allgather(tf.zeros([0 if rank else 2, 3]))
    assert empty.shape == (2, 3)
    assert hvd.allgather(tf.zeros([0, 4])).shape == (0, 4)


def test_allgather(job):
    job.run(allgather_matrix)


def broadcast_matrix():
    def step():
        results = []
        for dtype in ALL:
            for root in range(hvd.size()):
                results.append((hvd.broadcast(tf.constant(value(hvd.rank(), dtype, (3, 2))), root), dtype, root))
        return [r[0] for r in results], [(dtype, root) for _, dtype, root in results]

    for result, (dtype, root) in zip(*step(), strict=True):
        assert_same(result, value(root, dtype, (3, 2)))
    for result, (dtype, root) in zip(tf.function(lambda: step()[0])(), step()[1], strict=True):
        assert_same(result, value(root, dtype, (3, 2)))
    for shape in SHAPES:
        assert_same(hvd.broadcast(value(hvd.rank(), tf.float32, shape), 1), value(1, tf.float32, shape))


def test_broadcast(job):
    job.run(broadcast_matrix)


def alltoall_matrix():
    rank, size = hvd.rank(), hvd.size()

    def sent(r, dtype=tf.float32):  # rank r sends r + i rows to rank i, and keeps one
        splits = [r + i for i in range(size)]
        return value(r, dtype, (sum(splits) + 1, 2)), splits

    def expected(dtype):
        parts = []
        for r in range(size):
            x, splits = sent(r, dtype)
            begin = sum(splits[:rank])
            parts.append(x[begin : begin + splits[rank]])
        return np.concatenate(parts)

    def step():
        pairs = [hvd.alltoall(tf.constant(sent(rank, dtype)[0]), sent(rank)[1]) for dtype in ALL]
        return pairs, hvd.alltoall(tf.constant(value(rank, tf.int32, (2 * size, 3))))

    for run in (step, tf.function(step)):
        pairs, equal = run()
        for (output, received), dtype in zip(pairs, ALL, strict=True):
            assert_same(output, expected(dtype))
            assert received.dtype == tf.int32
            assert received.numpy().tolist() == [r + rank for r in range(size)]
        mine = slice(2 * rank, 2 * rank + 2)
        assert_same(equal, np.concatenate([value(r, tf.int32, (2 * size, 3))[mine] for r in range(size)]))


def test_alltoall(job):
    job.run(alltoall_matrix)


def reducescatter_matrix():
    rank, size = hvd.rank(), hvd.size()
    rows = 2 * size + 1  # the first rank gets one more
    begin, end = (0, 3) if rank == 0 else (2 * rank + 1, 2 * rank + 3)
    cases = [(op, dtype) for dtype in [*FLOATS, *INTS] for op in (hvd.Sum, hvd.Average)]

    def step():
        single = [hvd.reducescatter(tf.constant(value(rank, dtype, (rows, 2))), op=op) for op, dtype in cases]
        mine = [tf.constant(value(rank, tf.float64, (rows, n))) for n in (1, 3)]
        return single, hvd.grouped_reducescatter(mine, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5)

    for run in (step, tf.function(step)):
        single, group = run()
        for result, (op, dtype) in zip(single, cases, strict=True):
            assert_reduced(result, op, [x[begin:end] for x in values(dtype, (rows, 2))])
        for result, n in zip(group, (1, 3), strict=True):
            assert_reduced(result, hvd.Sum, [x[begin:end] for x in values(tf.float64, (rows, n))], 2.0, 0.5)
    few = hvd.reducescatter(tf.ones([1, 2]), op=hvd.Sum)
    assert few.shape == (1 if rank == 0 else 0, 2)


def test_reducescatter(job):
    job.run(reducescatter_matrix)


def sparse():
    rank, size = hvd.rank(), hvd.size()

    def slices(r):
        return value(r, tf.float32, (r + 1, 3)), np.arange(r, 2 * r + 1, dtype=np.int64)

    mine = tf.IndexedSlices(*map(tf.constant, slices(rank)), dense_shape=tf.constant([10, 3], tf.int64))
    wanted = np.concatenate([slices(r)[0] for r in range(size)])
    indices = np.concatenate([slices(r)[1] for r in range(size)])
    dense = tf.constant(value(rank, tf.float32, (4,)))

    def step():
        return hvd.allreduce(mine, op=hvd.Sum), hvd.allreduce(mine, name="s"), hvd.grouped_allreduce([mine, dense])

    for run in (step, tf.function(step)):
        summed, averaged, group = run()
        assert_same(summed.values, wanted)
        for result in (averaged, group[0]):
            assert_close(result.values, wanted / size)
            assert result.indices.numpy().tolist() == indices.tolist()
            assert result.dense_shape.numpy().tolist() == [10, 3]
        assert_reduced(group[1], hvd.Average, values(tf.float32, (4,)))
    # Each member of a group keeps its own shape.
    other = tf.IndexedSlices(tf.ones([1]), tf.constant([0]), dense_shape=tf.constant([7]))
    first, second = hvd.grouped_allreduce([mine, other])
    assert first.dense_shape.numpy().tolist() == [10, 3]
    assert second.dense_shape.numpy().tolist() == [7]
    whole = tf.IndexedSlices(tf.constant([3, 4]), tf.constant([0, 1]))
    assert hvd.allreduce(whole).values.numpy().tolist() == [3 / size, 4 / size] * size  # as TensorFlow divides
    for wrong in ({"op": hvd.Max}, {"op": hvd.Adasum}, {"prescale_factor": 2.0}, {"postscale_factor": 2.0}):
        with pytest.raises(NotImplementedError, match="IndexedSlices"):
            hvd.allreduce(mine, **wrong)
        with pytest.raises(NotImplementedError, match="IndexedSlices"):
            hvd.grouped_allreduce([mine, dense], **wrong)


def test_indexed_slices(tf_pool):
    tf_pool(3).run(sparse)


def adasum():
    """Adasum of two: a(1 - ab/2aa) + b(1 - ab/2bb), and its gradient the Adasum of the gradients."""

    def combined(a, b):
        product = np.dot(a.ravel(), b.ravel())
        return a * (1 - product / (2 * np.sum(a * a))) + b * (1 - product / (2 * np.sum(b * b)))

    shapes = [(5,), (2, 3)]
    inputs = [[np.random.default_rng(r).normal(size=shape) for shape in shapes] for r in range(2)]
    mine = [tf.constant(x) for x in inputs[hvd.rank()]]
    wanted = [combined(a, b) for a, b in zip(*inputs, strict=True)]
    for run in (hvd.allreduce, tf.function(hvd.allreduce)):
        assert_close(run(mine[0], op=hvd.Adasum), wanted[0])
    for run in (hvd.grouped_allreduce, tf.function(hvd.grouped_allreduce)):
        for result, expected in zip(run(mine, op=hvd.Adasum), wanted, strict=True):
            assert_close(result, expected)
    with tf.GradientTape() as tape:
        tape.watch(mine[0])
        y = hvd.allreduce(mine[0], op=hvd.Adasum)
    assert_close(tape.gradient(y, mine[0], output_gradients=mine[0]), wanted[0])


def no_adasum():
    for call in (hvd.allreduce, lambda x, op: hvd.grouped_allreduce([x], op=op)):
        with pytest.raises(NotImplementedError, match="3 ranks"):
            call(tf.ones([2]), op=hvd.Adasum)


def test_adasum(tf_pool):
    tf_pool(2).run(adasum)
    tf_pool(3).run(no_adasum)


def in_sets(sets):
    rank = hvd.rank()
    made = [hvd.add_process_set(ranks) for ranks in sets]
    x = tf.constant([float(rank + 1)])
    for ranks, process_set in zip(sets, made, strict=True):
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
    for process_set in made:
        assert hvd.remove_process_set(process_set)
        with pytest.raises(ValueError, match="not a registered process set"):
            hvd.allreduce(x, process_set=process_set)


def test_process_sets(tf_pool):
    tf_pool(3, HOROVOD_DYNAMIC_PROCESS_SETS="1").run(in_sets, [[0, 2], [1, 2], [1]])


def random_programs(seed, steps):
    """Random collectives, in a function and eager: what several ranks get is what one computes from all inputs."""
    choose = random.Random(seed)
    for _ in range(steps):
        plan = []
        for _ in range(choose.randint(1, 12)):
            shape = tuple(choose.choice([0, 1, 2, 3, 7, 33]) for _ in range(choose.randint(1, 3)))
            kind = choose.choice(["allreduce", "allreduce", "allgather", "broadcast", "reducescatter"])
            dtype = choose.choice([tf.int32, tf.float32, tf.float64])
            plan.append((kind, dtype, shape, choose.choice([hvd.Sum, hvd.Average]), choose.randrange(hvd.size())))

        def step(plan=tuple(plan)):
            results = []
            for kind, dtype, shape, op, root in plan:
                x = tf.constant(value(hvd.rank(), dtype, shape))
                more = {"op": op} if kind.endswith(("reduce", "scatter")) else {}
                more |= {"root_rank": root} if kind == "broadcast" else {}
                results.append(getattr(hvd, kind)(x, **more))
            return results

        for run in (tf.function(step), step):
            for result, (kind, dtype, shape, op, root) in zip(run(), plan, strict=True):
                inputs = values(dtype, shape)
                if kind == "allreduce":
                    assert_reduced(result, op, inputs)
                elif kind == "reducescatter":
                    parts = np.array_split(np.arange(shape[0]), hvd.size())[hvd.rank()]
                    assert_reduced(result, op, [x[parts] for x in inputs])
                elif kind == "broadcast":
                    assert_same(result, inputs[root])
                else:
                    assert_same(result, np.concatenate(inputs))


@pytest.mark.parametrize("size", [2, 3])
def test_random_programs(tf_pool, size):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    tf_pool(size).run(random_programs, seed, 6)


def asked():
    assert hvd.rank_op().numpy() == hvd.rank()
    assert hvd.local_rank_op().numpy() == hvd.local_rank()
    assert hvd.local_size_op().numpy() == hvd.local_size()
    assert hvd.size_op().numpy() == hvd.size()
    assert hvd.process_set_included_op().numpy() == 1
    assert tf.function(lambda: hvd.size_op(name="n") * 10 + hvd.rank_op())().numpy() == hvd.size() * 10 + hvd.rank()


def test_questions(tf_pool):
    tf_pool(2).run(asked)


def joined():
    """Rank r does r + 1 steps; the last to join is the last rank."""
    sums = [hvd.allreduce(tf.ones([3]), op=hvd.Sum).numpy().tolist()[0] for _ in range(hvd.rank() + 1)]
    return sums, int(hvd.join())


def test_join(tf_pool):
    results = tf_pool(3).run(joined)
    assert results == [([3.0], 2), ([3.0, 2.0], 2), ([3.0, 2.0, 1.0], 2)]
