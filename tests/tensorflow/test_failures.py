"""A killed rank: the other ranks promptly get an error that names the operation and the rank, in all modes."""

import os
import signal
import threading
import time

import pytest
import tensorflow as tf

import horovod.tensorflow as hvd

V1 = tf.compat.v1
LIMIT = 20.0  # seconds, below the timeout of collectives; on an idle machine 2 are promised


def eager_step():
    return hvd.allreduce(tf.ones([1000]), name="step")


def function_step():
    return tf.function(eager_step)


def session_step():
    session = V1.Session(graph=tf.Graph())
    with session.graph.as_default():
        result = eager_step()
    return lambda: session.run(result)


MODES = {"eager": lambda: eager_step, "function": function_step, "session": session_step}


def train_until_killed(modes, note):
    """Train without end; all modes use the same operation name, so ranks can use different modes."""
    step = MODES[modes[hvd.rank()]]()
    for _ in range(3):
        step()

    def end():
        with open(note, "w") as file:
            file.write(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)

    if hvd.rank() == 1:
        threading.Timer(0.3, end).start()

    def steps():
        while True:
            step()

    with pytest.raises(tf.errors.UnknownError) as caught:
        steps()
    noticed = time.time()
    # Later operations fail as well.
    for make in MODES.values():
        with pytest.raises(tf.errors.UnknownError, match="step"):
            make()()
    return str(caught.value), noticed


@pytest.mark.heavy
@pytest.mark.parametrize("modes", [("session", "eager", "function"), ("eager", "function")], ids=",".join)
def test_a_killed_rank(tf_pool, tmp_path, modes):
    note = str(tmp_path / "end")
    results = tf_pool(len(modes)).run(train_until_killed, modes, note, errors=True)
    assert "SIGKILL" in str(results[1])
    with open(note) as file:
        end = float(file.read())
    for rank, result in enumerate(results):
        if rank != 1:
            message, noticed = result
            assert "step" in message
            assert "rank 1" in message
            assert noticed - end < LIMIT
            print(f"rank {rank} noticed after {noticed - end:.3f} s")
