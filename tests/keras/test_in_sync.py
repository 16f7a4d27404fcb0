"""check_in_sync in the Keras and TensorFlow frontends."""

import numpy as np
import pytest

from tests.keras.modules import hvd, keras


def compared():
    from horovod.common.exceptions import OutOfSyncError

    rank = hvd.rank()
    if rank == 1:
        keras.layers.Dense(1)  # shifts automatic names relative to rank 0
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(2)]
    )
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.1))
    model.compile(optimizer=optimizer, loss="mse")
    x = np.random.default_rng(rank).normal(size=(8, 3)).astype("float32")

    def fit():
        return model.fit(
            x,
            x[:, :2],
            epochs=2,
            batch_size=4,
            verbose=0,
            callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
        )

    fit()
    digest = hvd.check_in_sync(model, epoch=2)
    numpy = keras.ops.convert_to_numpy
    means = numpy(hvd.allgather(numpy(model.layers[1].moving_mean)[None]))
    assert not np.array_equal(means[0], means[1])
    if rank == 1:
        model.layers[2].bias.assign([1.0, 2.0])
    message = r"model\.weights\[7\] is \[.*\] \(.*/bias\) on rank 0 and \[1\.0, 2\.0\] \(.*/bias\) on rank 1"
    with pytest.raises(OutOfSyncError, match=message):
        hvd.check_in_sync(model)
    with pytest.raises(OutOfSyncError, match=r"epoch is 0 on rank 0 and 1 on rank 1"):
        hvd.check_in_sync(optimizer, epoch=rank)
    with pytest.raises(ValueError, match=r"list_iterator must be .*, got an iterator"):
        hvd.check_in_sync(iter([1]))

    # With the setting, the callback checks: it detects an optimizer that differs on one rank.
    fit()
    if rank == 1:
        optimizer.iterations.assign(500)
    with pytest.raises(OutOfSyncError, match=r"model\.optimizer\.variables\[\d+\].* is \d+ .*on rank 0 and 5\d\d"):
        fit_unbroadcast(model, x, hvd)
    return digest


def fit_unbroadcast(model, x, hvd):
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    callback.broadcast_done = True
    model.fit(x, x[:, :2], batch_size=4, verbose=0, callbacks=[callback])


def test_the_first_difference_is_named_and_fit_checks_epochs(keras3):
    first, second = keras3(2, HOROVOD_CHECK_IN_SYNC_STEPS="1000").run(compared)
    assert first == second


def in_tensorflow():
    import tensorflow as tf

    import horovod.tensorflow as hvd
    from horovod.common.exceptions import OutOfSyncError

    rank = hvd.rank()
    variable = tf.Variable([1.0, 2.0])
    hvd.check_in_sync([variable, tf.constant("text"), tf.ones(3, tf.bfloat16)], step=4)
    with pytest.raises(OutOfSyncError, match=r"list\[0\] is \[1\.0, 2\.0\].* on rank 0 and \[1\.0, 3\.0\].* on rank 1"):
        hvd.check_in_sync([variable + [0.0, float(rank)]])
    with pytest.raises(RuntimeError, match="eager"):
        tf.function(lambda: hvd.check_in_sync(variable))()
    if hasattr(tf.keras, "__version__") and tf.keras.__version__.startswith("2"):
        return legacy(tf, rank)
    return True


def legacy(tf, rank):
    import horovod.tensorflow.keras as hvd
    from horovod.common.exceptions import OutOfSyncError

    model = tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=(3,), kernel_initializer="ones")])
    for kind in (tf.keras.optimizers.SGD, tf.keras.optimizers.legacy.SGD):
        model.compile(optimizer=hvd.DistributedOptimizer(kind(0.1, momentum=0.9)), loss="mse")
        model.fit(tf.ones((4, 3)), tf.ones((4, 2)), verbose=0)
        hvd.check_in_sync(model)
    if rank == 1:
        model.layers[0].bias.assign([1.0, 2.0])
    with pytest.raises(OutOfSyncError, match=r"model\.weights\[1\]"):
        hvd.check_in_sync(model)
    return True


@pytest.mark.parametrize("backend", ["tensorflow", pytest.param("legacy", marks=pytest.mark.heavy)])
def test_tensorflow_and_keras_2(keras_pool, backend):
    assert keras_pool(backend)(2).run(in_tensorflow) == [True, True]
