"""Names, messages and behaviour that existing TensorFlow programs rely on."""

import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow import mpi_ops
from tests.ranks import on_tensorflow

V1 = tf.compat.v1


def test_names_used_by_other_software(single):
    """Private names that other software imports, and the attribute _optimizer on compat.v1 optimizers."""
    assert hvd._LegacyOptimizer is V1.train.Optimizer
    plain = V1.train.GradientDescentOptimizer(0.5)
    assert isinstance(plain, hvd._LegacyOptimizer)
    assert not isinstance(plain, hvd._DistributedOptimizer)
    optimizer = hvd.DistributedOptimizer(plain)
    assert isinstance(optimizer, hvd._DistributedOptimizer)
    assert isinstance(optimizer, V1.train.GradientDescentOptimizer)
    assert optimizer._optimizer is plain
    assert hvd._allreduce(tf.constant([3.0])).numpy().tolist() == [3.0]
    assert mpi_ops._allreduce is hvd._allreduce
    assert [t.numpy().tolist() for t in mpi_ops._grouped_allreduce([tf.constant([1.0]), tf.constant([2.0])])] == [
        [1],
        [2],
    ]
    assert callable(mpi_ops._alltoall_grad)
    variable = tf.Variable([1.0])
    mpi_ops.broadcast_([variable], 0)
    assert variable.numpy().tolist() == [1.0]


def test_message_of_uninitialized_calls():
    """ "Horovod has not been initialized", a ValueError, for queries and collectives before init and after shutdown.

    In graphs the type is TensorFlow's.
    """
    hvd.shutdown()
    one = tf.ones([1])
    calls = [
        lambda: hvd.allreduce(one),
        lambda: hvd.grouped_allreduce([one]),
        lambda: hvd.allgather(one),
        lambda: hvd.broadcast(one, 0),
        lambda: hvd.alltoall(one),
        lambda: hvd.reducescatter(one),
    ]
    for kind in (tf.errors.FailedPreconditionError, tf.errors.UnknownError):  # before the first init and after shutdown
        for call in [hvd.rank, hvd.size, hvd.local_rank, *calls]:
            with pytest.raises(ValueError, match="Horovod has not been initialized"):
                call()
        for call in calls:
            with pytest.raises(Exception, match="Horovod has not been initialized") as caught:
                call()
            # An earlier test may have run a job here.
            assert isinstance(caught.value, (kind, tf.errors.UnknownError))
        with pytest.raises(tf.errors.OpError, match="Horovod has not been initialized"):
            tf.function(lambda: hvd.allreduce(one, name="in_a_graph"))()
        hvd.init()
        hvd.shutdown()


@pytest.mark.heavy
@on_tensorflow(2)
def test_gradients_of_groups_may_be_of_another_floating_dtype():
    """Call the registered gradient functions as autodiff does, with gradients of other floating dtypes."""
    from tensorflow.python.framework import ops

    n = hvd.size()
    inputs = [tf.ones([n, 2], tf.float16), tf.ones([2 * n, 1], tf.float16)]
    calls = []
    for function in (hvd.grouped_allgather, hvd.grouped_reducescatter):

        @tf.function
        def run(function=function):
            results = function(inputs)
            incoming = [tf.ones_like(results[0], tf.float32), tf.ones_like(results[1], tf.float64)]
            return ops.get_gradient_function(results[0].op)(results[0].op, *incoming)

        calls.append([(g.dtype.name, g.shape.as_list(), float(tf.reduce_sum(tf.cast(g, tf.float32)))) for g in run()])
    # Allgather: the average; reducescatter with Average: the gradient of the rows.
    assert calls == [[("float16", [2, 2], 4.0), ("float16", [4, 1], 4.0)]] * 2


def test_small_helpers():
    assert [n for n in range(10) if hvd.check_num_rank_power_of_2(n)] == [1, 2, 4, 8]
    assert hvd.handle_average_backwards_compatibility(hvd.Max, None) == hvd.Max
    with pytest.warns(DeprecationWarning, match="average"):
        assert hvd.handle_average_backwards_compatibility(None, False) == hvd.Sum
    assert isinstance(hvd.gpu_available("tensorflow"), bool)
    assert hvd._executing_eagerly()
    seen = []
    tf.function(lambda: seen.append(hvd._executing_eagerly()))()
    assert seen == [False]


def test_bad_arguments_travel_between_processes():
    import pickle

    from horovod.tensorflow._library import ArgumentError

    error = pickle.loads(pickle.dumps(ArgumentError("what is wrong")))
    assert isinstance(error, ValueError)
    assert isinstance(error, tf.errors.InvalidArgumentError)
    assert "what is wrong" in str(error)
    assert error.message == "what is wrong"


def test_custom_compressors_must_declare_their_properties():
    from horovod.tensorflow.compression import Compressor

    with pytest.raises(NotImplementedError, match=r"compress\(tensor\)"):
        Compressor.compress(tf.ones([1]))
    with pytest.raises(NotImplementedError, match="decompress"):
        Compressor.decompress(tf.ones([1]), None)
