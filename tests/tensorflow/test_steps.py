"""Steps of compiled functions, detected by the repetition of the engine's schedule, and which rank is late."""

import time

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from tests.runner.launching import eventually


def train(steps):
    weights = tf.Variable(np.ones((8, 8), np.float32))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.matmul(x, weights))
        tape = hvd.DistributedGradientTape(tape)
        weights.assign_sub(0.01 * tape.gradient(loss, [weights])[0])
        return loss

    for _ in range(steps):
        if hvd.rank() == 1:
            time.sleep(0.05)
        step(tf.ones((1, 8)))
    hvd.report(done=1)
    if hvd.rank() == 0:
        eventually(all_have_reported, 60, "both ranks have told of all steps")
    stats = hvd.stats()
    hvd.allreduce(tf.zeros(1), name="told")  # rank 1 is kept in the job until then
    return stats


def all_have_reported():
    return [one["reported"] for one in hvd.stats()["job"]["ranks"]] == [{"done": 1.0}] * 2


@pytest.mark.heavy
def test_steps_within_a_function_are_found_and_who_is_late_is_seen(tf_pool):
    first, second = tf_pool(2).run(train, 40, fresh=True)
    for stats in (first, second):
        assert stats["made"] == 40
        assert stats["step_seconds"] > 0.045
        # Undetected steps are not reported.
        assert stats["exposed_seconds"] is stats["data_seconds"] is stats["efficiency"] is None
        assert stats["collective_seconds"] > 0
    job = first["job"]
    assert job["last"]["rank"] == 1, job
    assert job["last"]["share"] > 0.6
    assert job["last"]["seconds"] > 0.02
    assert "rank 1 was last in " in job["sentence"]
    assert "step were communication" in job["sentence"]
