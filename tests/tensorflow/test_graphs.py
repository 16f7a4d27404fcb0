"""Operations inside functions, loops, branches, pipelines, sessions and saved models, and many at once."""

import random

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from tests.ranks import on_tensorflow
from tests.tensorflow.training import old_graph

V1 = tf.compat.v1


@on_tensorflow(2)
def test_many_at_once_in_a_session():
    """Each rank issues 64 operations in a different order: none may wait for another."""
    size, order = hvd.size(), list(range(64))
    random.Random(hvd.rank()).shuffle(order)
    for threads in (0, 1):
        with tf.Graph().as_default():
            x = V1.placeholder(tf.float32, [3])
            tensors = {i: hvd.allreduce(x * float(i), op=hvd.Sum, name=f"many{i}") for i in order}
            config = V1.ConfigProto(inter_op_parallelism_threads=threads, intra_op_parallelism_threads=threads)
            with V1.Session(config=config) as session:
                for _ in range(3):
                    results = session.run(tensors, {x: np.ones(3)})
                    assert {i: float(y[0]) for i, y in results.items()} == {i: float(i * size) for i in order}


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.heavy)])
@on_tensorflow(2, pytest.param(3, marks=pytest.mark.heavy))
def test_every_kind_at_once_in_a_function(seed):
    """Each rank uses a different order; results need memory of their own."""
    rank, size = hvd.rank(), hvd.size()
    makers = {}
    for i in range(8):
        makers |= {
            f"r{i}": lambda x, i=i: hvd.allreduce(x * i, op=hvd.Sum, name=f"r{i}"),
            f"g{i}": lambda x, i=i: hvd.allgather(x[: i + 1], name=f"g{i}"),
            f"b{i}": lambda x, i=i: hvd.broadcast(x + rank, i % size, name=f"b{i}"),
            f"s{i}": lambda x, i=i: hvd.reducescatter(x * i, op=hvd.Sum, name=f"s{i}"),
            f"a{i}": lambda x, i=i: hvd.alltoall(tf.repeat(x[:1], size) + i, name=f"a{i}"),
            f"q{i}": lambda x, i=i: tf.add_n(hvd.grouped_allreduce([x, x * i], op=hvd.Sum, name=f"q{i}")),
        }
    order = list(makers)
    random.Random(seed + rank).shuffle(order)

    @tf.function
    def step(x):
        results = {name: makers[name](x) for name in order}
        return [results[name] for name in makers]

    for _ in range(3):
        results = dict(zip(makers, step(tf.ones([2 * size])), strict=True))
        for i in range(8):
            assert results[f"r{i}"].numpy().tolist() == [float(i * size)] * (2 * size)
            assert results[f"g{i}"].shape == (min(i + 1, 2 * size) * size,)
            assert results[f"b{i}"].numpy().tolist() == [1.0 + i % size] * (2 * size)
            assert results[f"s{i}"].numpy().tolist() == [float(i * size)] * 2
            assert results[f"a{i}"].numpy().tolist() == [1.0 + i] * size
            assert results[f"q{i}"].numpy().tolist() == [float(size + i * size)] * (2 * size)


@on_tensorflow(2, pytest.param(3, marks=pytest.mark.heavy))
def test_control_flow():
    size = float(hvd.size())
    x = tf.constant([1.0, 2.0])

    @tf.function
    def loop(x, n):
        for i in tf.range(n):
            parts = [hvd.allreduce(x * float(k + 1), op=hvd.Sum) for k in range(4)]
            x = tf.add_n(parts) / (10.0 * size) + tf.cast(i, tf.float32)
        return x

    expected = np.array([1.0, 2.0])
    for i in range(40):
        expected = expected + i
    np.testing.assert_allclose(loop(x, 40), expected, rtol=1e-5)

    @tf.function
    def gathers(x):  # an output whose size changes from step to step
        return tf.while_loop(
            lambda i, x: i < 3,
            lambda i, x: (i + 1, hvd.allgather(x)),
            (0, x),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None])),
        )[1]

    assert gathers(x).shape == (2 * hvd.size() ** 3,)

    @tf.function
    def branch(x, positive):
        first = hvd.allreduce(x, op=hvd.Sum)
        second = tf.cond(positive, lambda: hvd.allreduce(x * 2.0, op=hvd.Sum), lambda: hvd.allreduce(x, op=hvd.Max))
        return first + second

    assert branch(x, tf.constant(True)).numpy().tolist() == [3 * size, 6 * size]
    assert branch(x, tf.constant(False)).numpy().tolist() == [1 + size, 2 * (1 + size)]

    @tf.function
    def inner(x):
        return hvd.allreduce(x, op=hvd.Sum) * 2.0

    @tf.function
    def outer(x):
        return inner(inner(x)) + inner(x + 1.0) + hvd.allreduce(x, op=hvd.Sum)

    np.testing.assert_allclose(outer(x), 4 * size**2 * x + 2 * size * (x + 1) + size * x)

    @tf.function
    def gradient_in_loop(x):
        total = tf.zeros_like(x)
        for _ in tf.range(3):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(hvd.allreduce(x, op=hvd.Sum) ** 2)
            total += tape.gradient(y, x)
        return total

    np.testing.assert_allclose(gradient_in_loop(x), 3 * 2 * size * size * x)

    @tf.function
    def gradient_of_loop(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tf.range(3):
                y = hvd.allreduce(y, op=hvd.Average) * y
            y = tf.reduce_sum(y)
        return tape.gradient(y, x)  # y = x ** 8

    np.testing.assert_allclose(gradient_of_loop(x), 8 * x**7, rtol=1e-5)


@on_tensorflow(2)
def test_ranks_with_different_surrounding_graphs():
    """Rank 0 alone has extra branches and loops before them; operations with equal names, or none, still match."""
    size = float(hvd.size())

    @tf.function
    def step(x, positive):
        if hvd.rank() == 0:
            tf.cond(positive, lambda: tf.print("seen", output_stream="file:///dev/null"), tf.no_op)
            for _ in tf.range(2):
                x += 0.0
        y = tf.cond(positive, lambda: hvd.allreduce(x, op=hvd.Sum, name="y"), lambda: x, name="branch")
        y = tf.while_loop(
            lambda i, _: i < 3, lambda i, y: (i + 1, hvd.allreduce(y, name="z") + x), (0, y), name="loop"
        )[1]
        more = {"op": hvd.Sum, "ignore_name_scope": True}
        with tf.name_scope(f"rank{hvd.rank()}"):
            y = tf.cond(positive, lambda: hvd.allreduce(y, name="v", **more), lambda: y)
        for _ in tf.range(2):
            y += hvd.allreduce(x, name="w", **more)
        return y

    assert step(tf.constant([1.0]), tf.constant(True)).numpy().tolist() == [(size + 3) * size + 2 * size]


@on_tensorflow(2)
def test_names_and_shapes():
    seen = {}

    @tf.function(input_signature=[tf.TensorSpec([None, 4])])
    def step(x):
        with tf.name_scope("outer"):
            results = {
                "allreduce": hvd.allreduce(x),
                "named": hvd.allreduce(x, name="my name:0"),
                "again": hvd.allreduce(x, name="my name:0"),
                "unscoped": hvd.allreduce(x, name="bare", ignore_name_scope=True),
                "broadcast": hvd.broadcast(x, 0),
                "allgather": hvd.allgather(x),
                "alltoall": hvd.alltoall(x, [1] * hvd.size())[0],
                "reducescatter": hvd.reducescatter(x),
                "group": hvd.grouped_allreduce([x, x])[1],
                "scalar": hvd.allreduce(tf.reduce_sum(x)),
                "literal": hvd.allreduce([1.0]),
                "size": hvd.size_op(),
                "joined": hvd.process_set_included_op(name="included"),
            }
        for name, tensor in results.items():
            seen[name] = (tensor.op.name, tensor.shape.as_list())
        return list(results.values())

    step(tf.ones([hvd.size(), 4]))
    assert seen["allreduce"] == ("outer/HorovodAllreduce_x", [None, 4])
    assert seen["named"] == ("outer/my_name_0", [None, 4])
    assert seen["again"] == ("outer/my_name_0_1", [None, 4])
    assert seen["unscoped"] == ("outer/bare", [None, 4])
    assert seen["broadcast"] == ("outer/HorovodBroadcast_x", [None, 4])
    assert seen["joined"] == ("outer/included", [])
    for name in ("allgather", "alltoall", "reducescatter"):
        assert seen[name][1] == [None, 4], name
    assert seen["group"][1] == [None, 4]
    assert seen["scalar"][1] == []
    assert seen["size"][1] == []


@on_tensorflow(2)
def test_xla_compiled_functions():
    @tf.function(jit_compile=True)
    def whole(x):
        return hvd.allreduce(x * 2.0)

    @tf.function(jit_compile=True)
    def calls_another(x):
        return tf.function(lambda x: hvd.allgather(x))(x * 2.0)

    for refused, operation in ((whole, "HorovodAllreduce"), (calls_another, "HorovodAllgather")):
        with pytest.raises(NotImplementedError, match=rf"{operation}.*jit_compile"):
            refused(tf.ones([2]))
    questions = {
        "Size": hvd.size_op,
        "Rank": hvd.rank_op,
        "LocalRank": hvd.local_rank_op,
        "LocalSize": hvd.local_size_op,
        "ProcessSetIncluded": hvd.process_set_included_op,
        "Join": hvd.join,
    }
    for operation, ask in questions.items():
        with pytest.raises(NotImplementedError, match=rf"Horovod{operation} cannot.*jit_compile"):
            tf.function(lambda ask=ask: ask() + 1, jit_compile=True)()
    with pytest.raises(NotImplementedError, match=r"HorovodAllreduce.*jit_compile"):
        whole.get_concrete_function(tf.ones([2]))

    @tf.function(jit_compile=True)
    def inner(x):
        return x * 3.0 + 1.0

    @tf.function
    def outer(x):
        return hvd.allreduce(inner(x), op=hvd.Sum)

    assert outer(tf.ones([2])).numpy().tolist() == [4.0 * hvd.size()] * 2

    @tf.function
    def clustered(x):
        return hvd.allreduce(x * 2.0 + 1.0, op=hvd.Sum) * 3.0 + x

    tf.config.optimizer.set_jit(True)
    try:
        assert clustered(tf.ones([2])).numpy().tolist() == [9.0 * hvd.size() + 1.0] * 2
    finally:
        tf.config.optimizer.set_jit(False)


@on_tensorflow(2)
def test_saved_model(tmp_path):
    class Module(tf.Module):
        def __init__(self):
            self.scale = tf.Variable([2.0])

        @tf.function(input_signature=[tf.TensorSpec([None])])
        def __call__(self, x):
            y = hvd.allreduce(x * self.scale, op=hvd.Sum)
            return y, hvd.allgather(x), hvd.grouped_allreduce([x, y])[1]

    path = f"{tmp_path}/{hvd.rank()}"
    tf.saved_model.save(Module(), path)
    loaded = tf.saved_model.load(path)
    size = float(hvd.size())
    x = tf.ones([2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y, gathered, again = loaded(x)
        loss = tf.reduce_sum(y)
    assert y.numpy().tolist() == again.numpy().tolist() == [2.0 * size] * 2
    assert gathered.shape == (2 * hvd.size(),)
    assert tape.gradient(loss, x).numpy().tolist() == [2.0 * size] * 2
    # The same in a session.
    with tf.Graph().as_default(), V1.Session() as session:
        signature = V1.saved_model.loader.load(session, ["serve"], path).signature_def["serving_default"]
        outputs = {key: info.name for key, info in signature.outputs.items()}
        results = session.run(outputs, {signature.inputs["x"].name: [1.0, 3.0]})
    results = [results[f"output_{i}"].tolist() for i in range(3)]
    assert results == [[2.0 * size, 6.0 * size], [1.0, 3.0] * hvd.size(), [2.0 * size, 6.0 * size]]


@pytest.mark.parametrize("old", [False, True])
@on_tensorflow(2)
def test_sessions(old):
    """Includes loops of TensorFlow 1, whose frames are visible to the kernels."""
    size = float(hvd.size())
    with old_graph() if old else tf.Graph().as_default():
        x = V1.placeholder(tf.float32, [2])
        summed = hvd.allreduce(x, op=hvd.Sum)
        assert summed.op.name == "HorovodAllreduce_Placeholder"
        loop = V1.while_loop(
            lambda i, y: i < 20, lambda i, y: (i + 1, hvd.allreduce(y, op=hvd.Average) + 1.0), (0, summed)
        )[1]
        branch = tf.cond(x[0] > 0, lambda: hvd.allreduce(x, op=hvd.Max), lambda: x)
        questions = [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op()]
        with V1.Session() as session:
            for _ in range(3):
                results = session.run([summed, loop, branch, questions], {x: [1.0, 2.0]})
                assert results[0].tolist() == [size, 2 * size]
                assert results[1].tolist() == [size + 20, 2 * size + 20]
                assert results[2].tolist() == [1.0, 2.0]
                assert results[3] == [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()]
