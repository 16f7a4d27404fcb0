"""DistributedOptimizer for tf.compat.v1 optimizers trains like one process on the combined batch."""

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from tests.ranks import on_tensorflow
from tests.tensorflow.reference import assert_close
from tests.tensorflow.training import Case, assert_equal_training, kinds_of_variables, old_graph, shard

tf1 = tf.compat.v1

OPTIMIZERS = {
    "sgd": lambda: tf1.train.GradientDescentOptimizer(0.3),
    "momentum": lambda: tf1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "adagrad": lambda: tf1.train.AdagradOptimizer(0.2),
    "adam": lambda: tf1.train.AdamOptimizer(0.05),
}


def batch_of(case, step, passes, part):
    """Return the combined rows of ``passes`` passes."""
    batches = [case.batch(step * passes + i, part) for i in range(passes)]
    return {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}


def train(case, kind, distributed, reference=False, passes=1, average=True, steps=4):
    """Return the variables and global_step after steps of ``passes`` passes each."""
    with old_graph(), tf1.variable_scope("net", use_resource=not reference):
        # Only rank 0 begins with the values of the case.
        shift = hvd.rank() if distributed else 0.0
        variables = {name: tf1.get_variable(name, initializer=value + shift) for name, value in case.initial()}
        chosen = list(variables.values())
        inputs = {key: tf1.placeholder(value.dtype) for key, value in case.batch(0).items()}
        inputs["x"].set_shape([None, case.width[0]])
        loss = case.loss(variables, inputs)
        optimizer = OPTIMIZERS[kind]()
        if distributed:
            optimizer = hvd.DistributedOptimizer(
                optimizer,
                backward_passes_per_step=passes,
                average_aggregated_gradients=average,
                **case.options(chosen) | ({"sparse_as_dense": True} if passes > 1 else {}),
            )
        elif not average:
            loss = loss * passes
        counter = tf1.train.get_or_create_global_step()
        train_op = optimizer.minimize(loss, global_step=counter, var_list=chosen)
        start = hvd.broadcast_global_variables(0) if distributed else tf.no_op()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(start)
            for step in range(steps):
                if distributed:
                    feeds = [case.batch(step * passes + i, shard()) for i in range(passes)]
                else:
                    feeds = [batch_of(case, step, passes, slice(None))]
                for feed in feeds:
                    session.run(train_op, {inputs[key]: feed[key] for key in inputs})
            return session.run(chosen), session.run(counter)


def compare(kinds, seeds, reference, **options):
    digests = []
    for kind in kinds:
        for seed in seeds:
            case = Case(seed)
            trained, steps = train(case, kind, True, reference, **options)
            if hvd.rank() == 0:  # the caller checks that other ranks have the same bits
                expected, expected_steps = train(case, kind, False, **options)
                assert_equal_training(case, trained, expected)
                assert steps == expected_steps
            digests.append([value.tobytes() for value in trained])
    return digests


@pytest.mark.parametrize("seeds", [[300], pytest.param([301, 302, 321], marks=pytest.mark.heavy)], ids=str)
@kinds_of_variables
def test_equals_one_process_on_the_joined_batch(tf_pool, reference, seeds):
    results = tf_pool(3).run(compare, OPTIMIZERS, seeds, reference, timeout=180)
    assert all(result == results[0] for result in results), "ranks differ"


@pytest.mark.heavy
@pytest.mark.parametrize("seeds", [[400], pytest.param([401], marks=pytest.mark.heavy)], ids=str)
@kinds_of_variables
def test_equals_one_process_with_locally_summed_passes(tf_pool, reference, seeds):
    def work():
        return [
            compare(["sgd", "adam"], seeds, reference, passes=passes, average=average)
            for passes, average in ((2, True), (3, False))
        ]

    results = tf_pool(2).run(work, timeout=180)
    assert all(result == results[0] for result in results), "ranks differ"


@on_tensorflow(2)
def test_distributed_optimizer_is_an_instance_of_its_class():
    with old_graph():
        v = tf1.get_variable("v", initializer=[1.0, 2.0])
        loss = tf.reduce_sum(v) * (hvd.rank() + 1)
        plain = tf1.train.MomentumOptimizer(0.5, 0.9)
        optimizer = hvd.DistributedOptimizer(plain)
        assert isinstance(optimizer, tf1.train.MomentumOptimizer)
        assert type(optimizer).__name__ == "MomentumOptimizer"
        assert optimizer.get_name() == "Momentum"
        pairs = optimizer.compute_gradients(loss)
        own = plain.compute_gradients(loss)
        clipped = [(tf.clip_by_value(gradient, -1.0, 1.0), variable) for gradient, variable in pairs]
        train_op = optimizer.apply_gradients(clipped)
        assert tf1.get_collection(tf1.GraphKeys.TRAIN_OP) == [train_op]
        slot = optimizer.get_slot(v, "momentum")
        assert slot is plain.get_slot(v, "momentum")
        assert optimizer.get_slot_names() == ["momentum"]
        assert [variable.name for variable in optimizer.variables()] == ["v/Momentum:0"]
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            assert_close(session.run([pairs[0][0], own[0][0]]), [[1.5, 1.5], [hvd.rank() + 1.0] * 2])
            session.run(train_op)
            assert_close(session.run([v, slot]), [[0.5, 1.5], [1.0, 1.0]])


@on_tensorflow(2)
def test_keeps_local_variables():
    rank, size = hvd.rank(), hvd.size()
    for scale in (True, False):
        with old_graph():
            own, shared = tf1.get_variable("mine", initializer=0.0), tf1.get_variable("shared", initializer=0.0)
            optimizer = tf1.train.GradientDescentOptimizer(1.0)
            optimizer = hvd.DistributedOptimizer(optimizer, scale_local_gradients=scale, name="local")
            optimizer.register_local_var(own)
            train_op = optimizer.minimize((own + shared) * (rank + 1.0))
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                session.run(train_op)
                expected = [-(rank + 1.0) / (size if scale else 1), -sum(range(1, size + 1)) / size]
                assert_close(session.run([own, shared]), expected)


@on_tensorflow(2)
def test_refuses_bad_arguments():
    optimizer = tf1.train.GradientDescentOptimizer(1.0)
    for options, match in (
        ({"backward_passes_per_step": 0}, "backward_passes_per_step must be .*, got 0"),
        ({"backward_passes_per_step": 2}, "eager mode"),
        ({"op": hvd.Adasum, "average_aggregated_gradients": True}, "Adasum"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor"),
        ({"groups": -3}, "groups must be .*, got -3"),
    ):
        with pytest.raises(ValueError, match=match):
            hvd.DistributedOptimizer(optimizer, **options)
    with pytest.raises(ValueError, match=r"optimizer must be .*, got a str"):
        hvd.DistributedOptimizer("sgd")
    with old_graph():
        table = tf1.get_variable("table", initializer=[[1.0], [2.0]])
        summing = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=2)
        with pytest.raises(ValueError, match=r"gradient of 'table' is an IndexedSlices.*sparse_as_dense=True"):
            summing.minimize(tf.reduce_sum(tf.gather(table, [0])))
        with pytest.warns(DeprecationWarning, match="num_groups"):
            hvd.DistributedOptimizer(optimizer, num_groups=1)


@on_tensorflow(2)
def test_keras_optimizers_are_forwarded():
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), op=hvd.Sum, groups=1)
    v = tf.Variable([1.0, 2.0])
    optimizer.apply_gradients([(tf.constant([1.0, 2.0]) * (hvd.rank() + 1), v)])
    assert_close(v, [-2.0, -4.0])
    assert isinstance(optimizer, tf.keras.optimizers.SGD)

    from horovod.tensorflow import keras

    plain, received = tf.keras.optimizers.SGD(1.0), {}
    arguments = {
        "name": "n",
        "device_dense": "/cpu:0",
        "device_sparse": "/cpu:0",
        "compression": hvd.Compression.fp16,
        "sparse_as_dense": True,
        "backward_passes_per_step": 3,
        "op": hvd.Average,
        "gradient_predivide_factor": 2.0,
        "average_aggregated_gradients": True,
        "groups": [[v]],
        "process_set": hvd.ProcessSet([0]),
        "scale_local_gradients": False,
        "weight": 2.0,
    }
    before = keras.DistributedOptimizer
    keras.DistributedOptimizer = lambda optimizer, **options: received.update(options) or optimizer
    try:
        assert hvd.DistributedOptimizer(plain, **arguments) is plain
    finally:
        keras.DistributedOptimizer = before
    assert received == arguments
