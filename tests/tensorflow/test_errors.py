"""Wrong use raises TensorFlow's errors on every rank, naming what disagrees, and the next collective works."""

import threading

import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from tests.ranks import on_tensorflow

V1 = tf.compat.v1
PRECONDITION = tf.errors.FailedPreconditionError
ARGUMENT = tf.errors.InvalidArgumentError


def expect(kind, call, texts):
    with pytest.raises(kind) as caught:
        call()
    missing = [text for text in texts if text not in str(caught.value)]
    assert not missing, f"{missing} not in: {caught.value}"
    # The next operation works.
    assert hvd.allreduce(tf.ones([2]), op=hvd.Sum).numpy().tolist() == [float(hvd.size())] * 2


def odd(this, that):
    """Return ``this`` on rank 1, ``that`` elsewhere."""
    return this if hvd.rank() == 1 else that


MISMATCHES = {
    # Kind of error: (call, texts in every rank's message); the conformance suite has other kinds
    "prescale": (
        lambda: hvd.allreduce(tf.ones([4]), name="t", op=hvd.Sum, prescale_factor=odd(1.5, 2.5)),
        ["t", "1.5", "2.5", "rank 1"],
    ),
    "shape": (lambda: hvd.allreduce(tf.ones([odd(5, 4)]), name="t"), ["t", "4", "5", "rank 0", "rank 1"]),
    "allgather of a scalar": (lambda: hvd.allgather(tf.ones(odd([], [2])), name="t"), ["t", "allgather", "rank 1"]),
    "alltoall of a scalar": (
        lambda: hvd.alltoall(tf.ones(odd([], [2 * hvd.size()])), name="t"),
        ["t", "alltoall", "rank 1"],
    ),
    "reducescatter shape": (lambda: hvd.reducescatter(tf.ones([odd(7, 6)]), name="t"), ["t", "6", "7", "rank 1"]),
    "named groups' sizes": (
        lambda: hvd.grouped_allreduce([tf.ones([2])] * odd(3, 2), name="t"),
        ["size of the group", "2", "3", "rank 0", "rank 1"],
    ),
    "unnamed groups' sizes": (
        lambda: hvd.grouped_allreduce([tf.ones([2])] * odd(1, 2)),
        ["size of the group", "2", "1", "rank 0", "rank 1"],
    ),
    "group member": (
        lambda: hvd.grouped_allreduce([tf.ones([2]), tf.ones([odd(5, 4)])], name="t"),
        ["t", "4", "5", "rank 1"],
    ),
}


@on_tensorflow(2)
def test_ranks_that_disagree_in_eager_mode_functions_and_sessions():
    for call, texts in MISMATCHES.values():
        expect(PRECONDITION, call, texts)
        expect(PRECONDITION, tf.function(call), texts)
    call, texts = MISMATCHES["shape"]
    with tf.Graph().as_default(), V1.Session() as session:
        wrong, right = call(), hvd.allreduce([1.0], op=hvd.Sum)
        for _ in range(2):
            with pytest.raises(PRECONDITION) as caught:
                session.run([wrong, right])
            assert all(text in str(caught.value) for text in texts)
            assert session.run(right).tolist() == [float(hvd.size())]


def refused(call, *texts):
    """Rejected by Python before an op is created, as both ValueError and TensorFlow's InvalidArgumentError."""
    expect(ARGUMENT, call, texts)
    expect(ValueError, call, texts)


@on_tensorflow(2)
def test_bad_arguments():
    size, x = hvd.size(), tf.ones([4])
    refused(lambda: hvd.allreduce(tf.constant([1j])), "allreduce", "complex128", "float32")
    refused(lambda: hvd.allgather(tf.constant(["text"])), "allgather", "string")
    refused(lambda: hvd.allreduce(tf.constant([True])), "Average", "bool")
    refused(lambda: hvd.allreduce([True], op=hvd.Sum, prescale_factor=2.0), "Sum", "bool", "2.0")
    refused(lambda: hvd.allreduce([True], op=hvd.Adasum), "Adasum", "bool")
    refused(lambda: hvd.allreduce([1], op=hvd.Adasum), "Adasum", "int32")
    refused(lambda: hvd.grouped_allreduce([x, tf.ones([1], tf.int64)]), "float32", "int64")
    refused(lambda: hvd.grouped_allreduce(x), "tensors", "list")
    refused(lambda: hvd.grouped_allgather([x, tf.constant([1j])]), "complex128")
    refused(lambda: hvd.reducescatter(1.0), "reducescatter", "scalar")
    for op in (hvd.Max, hvd.Adasum, 17):
        refused(lambda op=op: hvd.reducescatter(x, op=op), "reducescatter", "must be one of Average, Sum")
        expect(RuntimeError, lambda op=op: hvd.grouped_reducescatter([x], op=op), ["must be one of Average, Sum"])
    refused(lambda: hvd.reducescatter([True, False], op=hvd.Sum), "reducescatter", "bool")
    refused(lambda: hvd.broadcast(x, "root"), "root_rank", "'root'")
    refused(lambda: hvd.broadcast(x, True), "root_rank", "True")
    refused(lambda: hvd.allreduce(x, name=5), "name", "5")
    refused(lambda: hvd.alltoall(x, tf.constant([1] * size, tf.int64)), "splits", "int64")
    refused(lambda: hvd.alltoall(x, [[1] * size]), "splits must have 1 dimension, got 2")
    refused(lambda: hvd.alltoall(x, []), "splits must have one entry", "got none")
    refused(lambda: hvd.alltoall(x, [0.5] * size), "splits")
    refused(lambda: hvd.allreduce(x, process_set=hvd.ProcessSet([0])), "process set", f"rank {hvd.rank()}")
    for call in (hvd.allreduce, hvd.allgather, hvd.reducescatter, hvd.alltoall):
        for unknown in (17, -1):
            refused(lambda call=call, unknown=unknown: call(x, process_set=unknown), "process set")
    slices = tf.IndexedSlices(x, tf.constant([0, 1, 2, 3]))
    for call in (
        lambda: hvd.allreduce(x, compression="fp16"),
        lambda: hvd.allreduce(slices, compression="fp16"),
        lambda: hvd.grouped_allreduce([x], compression="fp16"),
        lambda: hvd.reducescatter(x, compression="fp16"),
        lambda: hvd.grouped_reducescatter([x], compression="fp16"),
        lambda: hvd.DistributedGradientTape(tf.GradientTape(), compression="fp16"),
        lambda: hvd.DistributedOptimizer(V1.train.GradientDescentOptimizer(0.1), compression="fp16"),
    ):
        with pytest.raises(ValueError, match=r"compression must be Compression\.none, \.fp16.*, got 'fp16'"):
            call()
    with pytest.raises(ValueError, match="both given"):
        hvd.allreduce(x, average=True, op=hvd.Sum)
    # Raised by the op when it runs.
    for run in (lambda call: call, tf.function):
        expect(ARGUMENT, run(lambda: hvd.alltoall(x, [1] * (size + 1))), ["splits"])
        expect(ARGUMENT, run(lambda: hvd.alltoall(x, [5] + [0] * (size - 1))), ["splits"])
        expect(ARGUMENT, run(lambda: hvd.alltoall(x, [-1] + [1] * (size - 1))), ["splits"])
        expect(ARGUMENT, run(lambda: hvd.alltoall(tf.ones([size + 1]))), [str(size)])
        expect(ARGUMENT, run(lambda: hvd.broadcast(x, size)), ["root", str(size)])
        expect(ARGUMENT, run(lambda: hvd.allreduce(x, process_set=4711)), ["4711"])
    made_up = hvd.ProcessSet([0])
    made_up.process_set_id = 4712
    for run in (lambda call: call, tf.function):
        expect(ValueError, run(lambda: hvd.allgather(x, process_set=4711)), ["4711", "unknown or was removed"])
        expect(ValueError, run(lambda: hvd.broadcast(x, 0, process_set=made_up)), ["4712", "unknown or was removed"])


@on_tensorflow(2)
def test_name_already_in_flight():
    """Of two threads that use a name at once, the later one gets an error."""
    if hvd.rank() == 1:
        hvd.allreduce([1.0], name="go")
        hvd.allreduce([1.0], name="same")
        return
    messages = []

    def attempt():
        try:
            hvd.allreduce([1.0], name="same")
        except ARGUMENT as error:
            messages.append(str(error))
            hvd.allreduce([1.0], name="go")  # the other rank completes the first operation only now

    threads = [threading.Thread(target=attempt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(messages) == 1
    assert "'same'" in messages[0]
    assert "in flight" in messages[0]


@on_tensorflow(2, initialized=False)
def test_after_shutdown():
    hvd.init()
    x = tf.ones([2])
    function = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name="step"))
    size = float(hvd.size())
    assert function(x).numpy().tolist() == [size] * 2
    hvd.shutdown()
    for call in (lambda: function(x), lambda: hvd.allreduce(x, name="eager")):
        with pytest.raises((tf.errors.UnknownError, PRECONDITION), match=r"init|shut down"):
            call()
    hvd.init()
    assert function(x).numpy().tolist() == [size] * 2  # traced before
    hvd.shutdown()


@on_tensorflow(3, initialized=False)
def test_a_rank_that_leaves():
    """Rank 1 shuts down while the others wait for it."""
    hvd.init()
    assert hvd.allreduce([1.0], op=hvd.Sum).numpy().tolist() == [float(hvd.size())]
    if hvd.rank() == 1:
        hvd.shutdown()
        return
    for call in (lambda: hvd.allreduce([1.0], name="lonely"), tf.function(lambda: hvd.allreduce([1.0], name="alone"))):
        with pytest.raises(tf.errors.UnknownError, match=r"lonely|alone") as caught:
            call()
        assert "rank 1" in str(caught.value)
    hvd.shutdown()
