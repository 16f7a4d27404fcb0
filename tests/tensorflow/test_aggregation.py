"""LocalGradientAggregationHelper accumulates gradients over passes in eager mode, functions and graphs."""

import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow.reduction import make_allreduce_grads
from tests.ranks import on_tensorflow
from tests.tensorflow.reference import assert_close

MODES = {"eager": lambda f: f, "function": tf.function}


def make_step(helper, variables, gradients_of):
    """Return a function (pass number) -> None that applies the helper's result as gradient descent."""

    def step(number):
        gradients = helper.compute_gradients(gradients_of(number), variables)

        def descend():
            for gradient, variable in zip(gradients, variables, strict=True):
                if gradient is not None:
                    variable.assign_sub(gradient)

        helper.apply_gradients(descend)
        return gradients

    return step


@pytest.mark.heavy
@on_tensorflow(2)
def test_sums_up():
    rank, size = hvd.rank(), hvd.size()
    for mode, wrap in MODES.items():
        for average in (False, True):
            v, w, unused = tf.Variable([0.0, 0.0]), tf.Variable(0.0, dtype=tf.float64), tf.Variable(1.0)
            helper = hvd.LocalGradientAggregationHelper(
                3, make_allreduce_grads(f"sums_up.{mode}.{average}"), average_aggregated_gradients=average
            )
            assert helper.counter is None

            def gradients_of(number):
                own = tf.cast(number, tf.float32) * (rank + 1)
                return [tf.stack([own, 2 * own]), tf.cast(own, tf.float64), None]

            step = wrap(make_step(helper, [v, w, unused], gradients_of))
            expected = 0.0
            for number in range(1, 8):
                gradients = step(tf.constant(number))
                assert gradients[2] is None
                assert gradients[0].shape == (2,)
                assert int(helper.counter) == number % 3
                if number % 3 == 0:
                    summed = sum(range(number - 2, number + 1)) * sum(range(1, size + 1)) / size
                    expected -= summed / 3 if average else summed
                assert_close(v, [expected, 2 * expected])
                assert_close(w, expected)
            assert len(helper.locally_aggregated_grads) == 2


@on_tensorflow(2)
def test_refuses_slices():
    table = tf.Variable([[1.0], [2.0]], name="table")

    def slices():
        return tf.IndexedSlices(tf.ones([1, 1]) * (hvd.rank() + 1), [hvd.rank() % 2], [2, 1])

    helper = hvd.LocalGradientAggregationHelper(2, make_allreduce_grads("slices"))
    with pytest.raises(ValueError, match=r"gradient of 'table' is an IndexedSlices.*backward_passes_per_step=2"):
        helper.compute_gradients([slices()], [table])
    for wrap in MODES.values():
        helper = hvd.LocalGradientAggregationHelper(2, make_allreduce_grads("slices"), sparse_as_dense=True)
        table.assign([[0.0], [0.0]])
        step = wrap(make_step(helper, [table], lambda number: [slices()]))
        for number in range(2):
            step(tf.constant(number))
        assert_close(table, [[-1.0], [-2.0]])
    with pytest.raises(ValueError, match=r"backward_passes_per_step must be .*, got 0"):
        hvd.LocalGradientAggregationHelper(0, lambda gradients, variables: gradients)


@on_tensorflow(2)
def test_counter_is_not_in_checkpoints():
    v = tf.Variable(1.0)
    helper = hvd.LocalGradientAggregationHelper(2, make_allreduce_grads("checkpoint"))
    make_step(helper, [v], lambda number: [tf.constant(1.0)])(0)
    assert not helper.counter.trainable
    assert not any(total.trainable for total in helper.locally_aggregated_grads)
    with tf.Graph().as_default():
        tf1 = tf.compat.v1
        x = tf1.get_variable("x", initializer=1.0)
        optimizer = hvd.DistributedOptimizer(tf1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2)
        optimizer.minimize(x * 1.0)
        assert [variable.name for variable in tf1.global_variables()] == ["x:0"]
        assert tf1.trainable_variables() == [x]


@on_tensorflow(2)
def test_one_pass_is_no_aggregation():
    helper = hvd.LocalGradientAggregationHelper(1, make_allreduce_grads("one"))
    v = tf.Variable(0.0)
    make_step(helper, [v], lambda number: [tf.constant(hvd.rank() + 1.0)])(0)
    assert_close(v, -1.5)
    assert helper.counter is None
