"""Gradients have unique names that agree between ranks with different histories."""

import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from tests.ranks import on_tensorflow
from tests.tensorflow.reference import assert_close


def names_in(function, *args):
    """Return the names of all Horovod operations in a traced function and its inner functions."""
    graph = function.get_concrete_function(*args).graph.as_graph_def()
    nodes = [*graph.node, *(node for inner in graph.library.function for node in inner.node_def)]
    return sorted(node.name for node in nodes if node.op.startswith("Horovod"))


def reduced(variables, factor=1.0, **options):
    """Return the gradients of (rank + 1) * sum of the variables: each is the mean of rank + 1."""
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(v) for v in variables]) * (hvd.rank() + 1) * factor
    return hvd.DistributedGradientTape(tape, **options).gradient(loss, variables)


MEAN = 1.5


def ranks_with_another_history():
    rank = hvd.rank()
    for _ in range(3 * rank):  # shifts Keras' automatic numbers
        tf.keras.Sequential([tf.keras.layers.Dense(2)]).build((None, 2))
    layer = tf.keras.layers.Dense(2, kernel_initializer="ones")
    layer.build((None, 2))
    variables = layer.trainable_variables
    step = tf.function(lambda shape: [tf.reduce_sum(g) for g in reduced(variables)])
    for i in range(2 * rank):  # traced, but not run
        step.get_concrete_function(tf.zeros([i + 5]))

    @tf.function
    def scoped(x):
        with tf.name_scope("train"):
            return reduced(variables)

    for i in range(rank):
        scoped.get_concrete_function(tf.zeros([i + 2]))
    assert_close(step(tf.zeros([1])), [4 * MEAN, 2 * MEAN])
    scoped(tf.zeros([1]))
    generic = tf.function(lambda: _generic(variables))
    assert all(name.split("/")[-1].isdigit() for name in names_in(generic))
    named = [tf.Variable(1.0, name=f"of_rank_{rank}_{'ab'[rank]}"), tf.Variable([1.0], name="loaded/b" * rank or "b")]
    for _ in range(3):
        assert_close(tf.function(lambda: reduced(named))()[0], MEAN)
    return names_in(step, tf.zeros([1])), names_in(scoped, tf.zeros([1]))


def _generic(variables):
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(v) for v in variables])
    return hvd.DistributedGradientTape(tape).gradient(loss, variables, use_generic_names=True)


@pytest.mark.heavy
def test_results_do_not_depend_on_earlier_operations(tf_pool):
    results = tf_pool(2).run(ranks_with_another_history, timeout=120)
    assert results[0] == results[1]
    step, scoped = results[0]
    assert len(set(step)) == 2
    assert step == scoped
    assert [name.split("/")[-2:] for name in step] == [["DistributedGradientTape_Allreduce", str(i)] for i in range(2)]


@on_tensorflow(2)
def test_several_reductions_in_one_function():
    first, second = [tf.Variable([1.0, 2.0])], [tf.Variable(3.0), tf.Variable([4.0])]
    on = tf.Variable(True)

    @tf.function
    def step(steps):
        results = [*reduced(first), *reduced(second)]  # two tapes, as for adversarial training
        results = results + reduced(first, 10.0) if on else results + reduced(first, 20.0)
        total = tf.zeros([])
        for _ in tf.range(steps):
            total += reduced(second)[0]
        return results, total

    for flag, factor in ((True, 10), (False, 20), (True, 10)):
        on.assign(flag)
        results, total = step(tf.constant(3))
        assert_close(total, 3 * MEAN)
        for actual, expected in zip(results, [[MEAN] * 2, MEAN, [MEAN], [factor * MEAN] * 2], strict=True):
            assert_close(actual, expected)
    names = names_in(step, tf.constant(3))
    assert len(set(names)) == len(names), names
