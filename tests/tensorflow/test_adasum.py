"""op=Adasum of the tape, which combines gradients, and of tf.compat.v1 optimizers, which combine weight changes."""

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from tests.ranks import on_tensorflow
from tests.tensorflow.reference import assert_close
from tests.tensorflow.training import kinds_of_variables, old_graph

tf1 = tf.compat.v1


def pair(a, b):
    aa, bb, ab = (a * a).sum(), (b * b).sum(), (a * b).sum()
    return a + b if aa == 0 or bb == 0 else (1 - ab / (2 * aa)) * a + (1 - ab / (2 * bb)) * b


def adasum(arrays):
    """Compute Adasum by its definition: first of neighbours, then of neighbouring results."""
    partial = list(arrays)
    while len(partial) > 1:
        partial = [pair(*partial[i : i + 2]) for i in range(0, len(partial), 2)]
    return partial[0]


@pytest.mark.heavy
@on_tensorflow(2, pytest.param(4, marks=pytest.mark.heavy))
def test_tape():
    rank, size = hvd.rank(), hvd.size()
    rng = np.random.default_rng(7)
    variables = [tf.Variable(rng.normal(size=shape)) for shape in ((5,), (2, 3), ())]
    factors = [[rng.normal(size=v.shape) for v in variables] for _ in range(size)]

    def step():
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(v * f) for v, f in zip(variables, factors[rank], strict=True)])
        return hvd.DistributedGradientTape(tape, op=hvd.Adasum).gradient(loss, variables)

    for run in (step, tf.function(step)):
        for i, gradient in enumerate(run()):
            assert_close(gradient, adasum([factors[r][i] for r in range(size)]), 1e-9)


RATE, MOMENTUM = 0.125, 0.5


def simulated(start, curvature, cycles, passes):
    """Simulate Momentum's descent on curvature * x**2 / 2 on each rank, combined after every cycle."""
    weights, speed = start, [np.zeros_like(start) for _ in curvature]
    for _ in range(cycles):
        ends = []
        for r, c in enumerate(curvature):
            own = weights
            for _ in range(passes):
                speed[r] = MOMENTUM * speed[r] + c * own
                own = own - RATE * speed[r]
            ends.append(own)
        weights = weights + adasum([end - weights for end in ends])
    return weights


def optimizer_combines_changes(passes, reference):
    size = hvd.size()
    rng = np.random.default_rng(11)
    starts = [rng.normal(size=n) for n in (4, 1)]
    curvatures = [rng.uniform(0.5, 2, size=(size, n)) for n in (4, 1)]
    with old_graph(), tf1.variable_scope("net", use_resource=not reference):
        variables = [tf1.get_variable(f"v{i}", initializer=start) for i, start in enumerate(starts)]
        terms = [tf.reduce_sum(c[hvd.rank()] * v * v) / 2 for c, v in zip(curvatures, variables, strict=True)]
        optimizer = tf1.train.MomentumOptimizer(RATE, MOMENTUM)
        optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Adasum, backward_passes_per_step=passes)
        counter = tf1.train.get_or_create_global_step()
        train_op = optimizer.minimize(tf.add_n(terms), global_step=counter)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for _ in range(3 * passes):
                session.run(train_op)
            values = session.run(variables)
            assert session.run(counter) == 3 * passes
    for value, start, c in zip(values, starts, curvatures, strict=True):
        assert_close(value, simulated(start, list(c), 3, passes), 1e-9)
    return [value.tobytes() for value in values]


@kinds_of_variables
@pytest.mark.parametrize("passes", [pytest.param(1, marks=pytest.mark.heavy), 2])
def test_optimizer(tf_pool, passes, reference):
    results = tf_pool(2).run(optimizer_combines_changes, passes, reference)
    assert results[0] == results[1]


@on_tensorflow(1)
def test_optimizer_alone():
    v = tf.Variable([1.0, 2.0])
    optimizer = hvd.DistributedOptimizer(tf1.train.GradientDescentOptimizer(1.0), op=hvd.Adasum)
    optimizer.minimize(lambda: tf.reduce_sum(v), var_list=[v])
    assert_close(v, [0.0, 1.0])
