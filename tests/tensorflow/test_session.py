"""Training in sessions, as in scripts for TensorFlow 1."""

import os

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
from tests.ranks import on_tensorflow
from tests.tensorflow.reference import assert_close
from tests.tensorflow.training import Case, assert_equal_training, kinds_of_variables, old_graph, shard

tf1 = tf.compat.v1


def monitored(case, distributed, reference, steps, folder=None):
    """Train in a MonitoredTrainingSession on data that the graph produces; return the final variables."""
    with old_graph(), tf1.variable_scope("net", use_resource=not reference):
        shift = hvd.rank() if distributed else 0.0
        variables = {name: tf1.get_variable(name, initializer=value + shift) for name, value in case.initial()}
        part = shard() if distributed else slice(None)
        batches = [case.batch(i, part) for i in range(steps)]
        joined = {key: np.stack([batch[key] for batch in batches]) for key in batches[0]}
        dataset = tf.data.Dataset.from_tensor_slices(joined)
        batch = tf1.data.make_one_shot_iterator(dataset).get_next()
        optimizer = tf1.train.AdagradOptimizer(0.2)
        hooks = []
        if distributed:
            optimizer = hvd.DistributedOptimizer(optimizer)
            hooks.append(hvd.BroadcastGlobalVariablesHook(0))
        counter = tf1.train.get_or_create_global_step()
        train_op = optimizer.minimize(case.loss(variables, batch), global_step=counter)
        hooks.append(tf1.train.StopAtStepHook(last_step=steps))
        keep = KeepVariables(list(variables.values()))
        with tf1.train.MonitoredTrainingSession(
            checkpoint_dir=folder if hvd.rank() == 0 else None, hooks=[*hooks, keep], log_step_count_steps=None
        ) as session:
            while not session.should_stop():
                session.run(train_op)
        return keep.values


class KeepVariables(tf1.train.SessionRunHook):
    """Session hook that reads variables at the end."""

    def __init__(self, variables):
        self.variables = variables

    def end(self, session):
        self.values = session.run(self.variables)


@kinds_of_variables
def test_the_classic_loop_equals_one_process(tf_pool, tmp_path, reference):
    def work(folder):
        digests = []
        for seed in (500, 501):
            case, path = Case(seed), os.path.join(folder, str(seed))
            trained = monitored(case, True, reference, 4, path)
            expected = monitored(case, False, reference, 4)
            assert_equal_training(case, trained, expected)
            # Rank 0 resumes from its checkpoint, and the others follow.
            longer = monitored(case, True, reference, 6, path)
            assert any(not np.array_equal(a, b) for a, b in zip(longer, trained, strict=True))
            digests.append([value.tobytes() for value in [*trained, *longer]])
        return digests

    results = tf_pool(2).run(work, str(tmp_path), timeout=120)
    assert results[0] == results[1]


@on_tensorflow(2)
def test_an_infinite_gradient_on_one_rank_skips_the_step_on_all():
    with old_graph():
        x = tf1.placeholder(tf.float32, [])
        v = tf1.get_variable("v", initializer=1.0)
        for wrap in (
            lambda plain, scaled: hvd.DistributedOptimizer(scaled(plain, "dynamic")),
            lambda plain, scaled: scaled(hvd.DistributedOptimizer(plain), "dynamic"),
        ):
            optimizer = wrap(
                tf1.train.GradientDescentOptimizer(1.0), tf1.mixed_precision.MixedPrecisionLossScaleOptimizer
            )
            train_op = optimizer.minimize(v * x)
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                for value, expected in ((1.0, -0.5), (np.inf if hvd.rank() == 1 else 1.0, -0.5), (1.0, -2.0)):
                    session.run(train_op, {x: value * (hvd.rank() + 1)})
                    assert_close(session.run(v), expected)
