"""DistributedGradientTape: gradients of shards equal those of the combined batch; it behaves like the wrapped tape."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from tests.ranks import on_tensorflow
from tests.tensorflow.reference import assert_close
from tests.tensorflow.training import Case, assert_equal_training, shard


def train(case, mode, distributed, steps=5):
    """Return the variables after gradient descent: on shards if ``distributed``, else on the combined batches."""
    variables = {name: tf.Variable(value, name=name) for name, value in case.initial()}
    chosen = list(variables.values())
    options = case.options(chosen)

    def step(batch):
        if distributed and case.seed % 2:  # wrapped before it records
            with hvd.DistributedGradientTape(tf.GradientTape(), **options) as tape:
                loss = case.loss(variables, batch)
        else:
            with tf.GradientTape() as tape:
                loss = case.loss(variables, batch)
            tape = hvd.DistributedGradientTape(tape, **options) if distributed else tape
        for gradient, variable in zip(tape.gradient(loss, chosen), chosen, strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                variable.scatter_sub(tf.IndexedSlices(0.5 * gradient.values, gradient.indices))
            elif gradient is not None:
                variable.assign_sub(0.5 * gradient)

    run = tf.function(step) if mode == "function" else step
    for i in range(steps):
        batch = case.batch(i, shard() if distributed else slice(None))
        run({key: tf.constant(value) for key, value in batch.items()})
    return [variable.numpy() for variable in chosen]


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.heavy)])
def test_equals_one_process_on_the_joined_batch(tf_pool, size):
    def work(seeds):
        digests = []
        for seed in seeds:
            for mode in ("eager", "function"):
                case = Case(seed)
                trained = train(case, mode, True)
                assert_equal_training(case, trained, train(case, mode, False))
                digests.append([value.tobytes() for value in trained])
        return digests

    results = tf_pool(size).run(work, range(100 * size, 100 * size + (3 if size == 2 else 6)), timeout=180)
    assert all(result == results[0] for result in results), "ranks differ"


def gradient(wrap, sources, target, **arguments):
    with tf.GradientTape() as tape:
        loss = target()
    return wrap(tape).gradient(loss, sources, **arguments)


@on_tensorflow(2)
def test_distributed_tape_behaves_like_the_tape():
    rank, size = hvd.rank(), hvd.size()
    v, w = tf.Variable([1.0, 2.0]), tf.Variable(3.0)
    mean = sum(range(1, size + 1)) / size

    def loss():
        return (rank + 1) * tf.reduce_sum(v)

    with tf.GradientTape(persistent=True) as tape:
        target = loss()
    distributed = hvd.DistributedGradientTape(tape)
    assert isinstance(distributed, tf.GradientTape)
    assert type(distributed).__name__ == "GradientTape"
    assert distributed.watched_variables() == tape.watched_variables()
    for _ in range(2):
        assert_close(distributed.gradient(target, v), [mean, mean])
        assert_close(tape.gradient(target, v), [rank + 1.0] * 2)  # the given tape is unchanged
    nested = distributed.gradient(target, {"a": [v], "b": w})
    assert_close(nested["a"][0], [mean, mean])
    assert nested["b"] is None
    zero = tf.UnconnectedGradients.ZERO
    assert_close(distributed.gradient(target, w, unconnected_gradients=zero), 0)
    assert_close(distributed.gradient(target, [w], None, zero)[0], 0)  # on the device where the plain tape has it
    assert_close(distributed.gradient(target, v, tf.constant(2.0), True), [2 * mean] * 2)
    again = hvd.DistributedGradientTape(distributed, op=hvd.Sum)
    assert_close(again.gradient(target, v), [mean * size] * 2)
    assert_close(hvd.DistributedGradientTape(tape, op=hvd.Max).gradient(target, v), [size] * 2)

    with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        target = v * v * (rank + 1)
    assert_close(tape.jacobian(target, v), [[2.0 * (rank + 1), 0], [0, 4.0 * (rank + 1)]])
    with hvd.DistributedGradientTape(tf.GradientTape()) as once:
        target = loss()
    once.gradient(target, v)
    with pytest.raises(RuntimeError, match="persistent"):
        once.gradient(target, v)


NUMPY = {"gradient_predivide_factor": np.float32(2.0), "op": np.int64(hvd.Average)}


@on_tensorflow(2)
def test_compresses_and_averages_slices():
    rank, size = hvd.rank(), hvd.size()
    table, v = tf.Variable([[1.0, 2.0], [3.0, 4.0]]), tf.Variable([1.0])

    def loss():
        return tf.reduce_sum(tf.gather(table, [rank % 2])) * (rank + 1) + tf.reduce_sum(v) * (rank + 1)

    expected = sum((r + 1.0) * tf.one_hot([r % 2], 2).numpy() for r in range(size)).reshape(2, 1) / size
    for options in (
        {},
        {"compression": hvd.Compression.fp16},
        {"gradient_predivide_factor": 2.0},
        {"groups": 1},
        NUMPY,
    ):
        for dense in (False, True):
            wrap = functools.partial(hvd.DistributedGradientTape, sparse_as_dense=dense, **options)
            slices, plain = gradient(wrap, [table, v], loss)
            assert isinstance(slices, tf.IndexedSlices) != dense
            assert_close(tf.convert_to_tensor(slices), expected.repeat(2, 1))
            assert_close(plain, [sum(range(1, size + 1)) / size])
            assert plain.dtype == tf.float32


@on_tensorflow(2)
def test_keeps_local_gradients():
    rank, size = hvd.rank(), hvd.size()
    private, shared = tf.Variable(1.0), tf.Variable(1.0)

    def loss():
        return (rank + 1) * (2 * private + shared)

    def local(**options):
        def wrap(tape):
            tape = hvd.DistributedGradientTape(tape, **options)
            tape.register_local_source(private)
            return tape

        return wrap

    mean = sum(range(1, size + 1)) / size
    assert_close(gradient(local(), [private, shared], loss), [2 * (rank + 1) / size, mean])
    assert_close(gradient(local(scale_local_gradients=False), [private, shared], loss), [2 * (rank + 1), mean])
    private = tf.Variable([[1.0], [2.0], [3.0]])  # only one row gets a gradient

    def sparse_loss():
        return (rank + 1) * (tf.reduce_sum(tf.gather(private, [2])) + shared)

    for scale in (True, False):
        slices, plain = gradient(local(scale_local_gradients=scale), [private, shared], sparse_loss)
        assert isinstance(slices, tf.IndexedSlices)
        assert_close(slices.values, [[(rank + 1) / (size if scale else 1)]])
        assert_close(slices.indices, [2])
        assert_close(tf.convert_to_tensor(slices)[:2], [[0], [0]])
        assert_close(plain, mean)
    private = tf.Variable(1.0)
    tape = local()(tf.GradientTape())
    own, synced = tape.get_local_and_global_gradients([5.0, 6.0], [shared, private])
    assert own[0][0] is private
    assert own[0][1] == 6.0
    assert synced[0][0] is shared
    assert (len(own), len(synced)) == (1, 1)
    with pytest.raises(ValueError, match="float"):
        tape.register_local_source(1.0)


@on_tensorflow(2)
def test_refuses_bad_arguments():
    tape, v = tf.GradientTape(), tf.Variable(1.0)
    for options, match in (
        ({"op": 9}, "op must be .*, got 9"),
        ({"gradient_predivide_factor": 0.0}, "gradient_predivide_factor must be .*, got 0.0"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "op=Sum"),
        ({"groups": -1}, "groups must be .*, got -1"),
        ({"groups": "ab"}, "groups must be .*, got a str"),
        ({"groups": [v]}, r"groups\[0\]"),
        ({"groups": [[v], [1.0]]}, r"got a float in groups\[1\]"),
        ({"groups": [[v], [v]]}, "at most once"),
    ):
        with pytest.raises(ValueError, match=match):
            hvd.DistributedGradientTape(tape, **options)
    with pytest.raises(ValueError, match=r"gradtape must be a tf.GradientTape, got a int"):
        hvd.DistributedGradientTape(3)
    with pytest.warns(DeprecationWarning, match="num_groups"):
        hvd.DistributedGradientTape(tape, num_groups=2)


@on_tensorflow(1, initialized=False)
def test_calls_before_init_are_reported():
    v = tf.Variable(1.0)
    with pytest.raises(ValueError, match="init"):
        gradient(hvd.DistributedGradientTape, v, lambda: v * 1.0)


def rows_of(step, rank):
    """Return a number of rows that differs between ranks and steps; rank 0 has none in step 1."""
    return 0 if (step, rank) == (1, 0) else 1 + 2 * rank + step


def rows(step, rank):
    random = np.random.default_rng([step, rank])
    count = rows_of(step, rank)
    return random.integers(0, 5, (count, 3)), random.normal(size=(count, 2))


def train_with_weights(compiled, dtype="float64", tolerance=1e-9, steps=3, **options):
    """Train an embedding and a matrix with a different number of rows on each rank, and compare with one process."""
    table, matrix = np.linspace(-1, 1, 20).reshape(5, 4), np.linspace(0, 1, 8).reshape(4, 2)
    variables = [tf.Variable(table, dtype=dtype), tf.Variable(matrix, dtype=dtype)]
    alone = [tf.Variable(table, dtype=dtype), tf.Variable(matrix, dtype=dtype)]

    def loss_of(variables, tokens, targets):
        hidden = tf.reduce_sum(tf.gather(variables[0], tokens), axis=1)
        return tf.reduce_mean((tf.matmul(hidden, variables[1]) - tf.cast(targets, dtype)) ** 2)  # NaN without rows

    def step(tokens, targets):
        with tf.GradientTape() as tape:
            loss = loss_of(variables, tokens, targets)
        tape = hvd.DistributedGradientTape(tape, weight=tf.shape(tokens)[0], **options)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))

    if compiled:
        signature = (tf.TensorSpec([None, 3], tf.int64), tf.TensorSpec([None, 2], tf.float64))
        step = tf.function(step, input_signature=signature)
    for number in range(steps):
        tokens, targets = rows(number, hvd.rank())
        step(tf.constant(tokens), tf.constant(targets))
        parts = [np.concatenate(parts) for parts in zip(*(rows(number, r) for r in range(hvd.size())), strict=True)]
        with tf.GradientTape() as tape:
            loss = loss_of(alone, *parts)
        for variable, gradient in zip(alone, tape.gradient(loss, alone), strict=True):
            variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        for one, other in zip(variables, alone, strict=True):
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
    hvd.check_in_sync(variables)


@pytest.mark.heavy
@on_tensorflow(2)
def test_weighted_gradients_match_one_process():
    for compiled in (False, True):
        train_with_weights(compiled)
    train_with_weights(True, "float32", 1e-5, steps=1)
    train_with_weights(True, "float32", 1e-2, compression=hvd.Compression.fp16)
    train_with_weights(True, sparse_as_dense=True, groups=1)
    variable = tf.Variable(tf.zeros(3, tf.float16))
    for weight, expected in ((lambda: 10**9 * (1 + hvd.rank()), 2e4), (0, 0)):  # no product overflows
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * (6e4 if hvd.rank() else -6e4))
        tape = hvd.DistributedGradientTape(tape, weight=weight)
        np.testing.assert_allclose(tape.gradient(loss, variable), np.full(3, expected), rtol=2e-3)
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.5)
    one = tf.Variable([1.0, 2.0])
    pairs = hvd.DistributedOptimizer(optimizer, weight=1 + 2 * hvd.rank()).compute_gradients(
        lambda: tf.reduce_sum(one * float(hvd.rank()))
    )
    np.testing.assert_allclose(pairs[0][0], [0.75, 0.75])
    for compile_ in (tf.function, lambda function: function):
        count, one = tf.Variable(1.0), tf.Variable([1.0, 2.0])
        momentum = hvd.DistributedOptimizer(tf.compat.v1.train.MomentumOptimizer(0.5, 0.9), weight=count.read_value)
        step = compile_(lambda m=momentum, v=one: [m.minimize(lambda: tf.reduce_sum(v)), None][1])
        for weight in (1.0, 0.0):  # with a total of 0, momentum does not move the variable either
            count.assign(weight)
            step()
            np.testing.assert_allclose(one, [0.5, 1.5])
    with pytest.raises(ValueError, match="weight requires op=Average, got op=Sum"):
        hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum, weight=2)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(one)
    tape = hvd.DistributedGradientTape(tape, weight=-1)
    with pytest.raises(ValueError, match="weight must be a finite number of 0 or more, got -1"):
        tape.gradient(loss, one)
