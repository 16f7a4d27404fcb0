"""SyncBatchNormalization equals batch normalization over the combined batch."""

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow.sync_batch_norm import joined_moments
from tests.ranks import on_tensorflow
from tests.tensorflow.reference import assert_close


def legacy():
    """Return True if tf.keras is Keras 2 in this process."""
    return hasattr(tf.keras.layers.BatchNormalization, "_calculate_mean_and_var")


def batch(rank, shape, empty):
    """Return a rank's batch; sizes differ, and rank 1's is empty on request."""
    rows = 0 if empty and rank == 1 else rank + 2
    return np.random.default_rng(rank).normal(5.0, 2.0, (rows, *shape)).astype(np.float32)


def train(layer, x, weights):
    """Run one step; return (output, gradient of sum(weights * output**2) with respect to x, gamma and beta)."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x, training=True)
        loss = tf.reduce_sum(weights * tf.cast(y, tf.float32) ** 2)
    return y, tape.gradient(loss, [x, layer.gamma, layer.beta])


def compare(shape, axis, as_function, empty=False):
    rank, size = hvd.rank(), hvd.size()
    batches = [batch(r, shape, empty) for r in range(size)]
    rows = [len(b) for b in batches]
    joined = np.concatenate(batches)
    seed = np.random.default_rng(99).normal(size=joined.shape).astype(np.float32)
    own = slice(sum(rows[:rank]), sum(rows[: rank + 1]))

    def layers():
        settings = {"axis": axis, "momentum": 0.7, "epsilon": 1e-4}
        plain = {"fused": False} if legacy() else {}  # the fused kernel computes a different moving variance
        for layer in (hvd.SyncBatchNormalization(**settings), tf.keras.layers.BatchNormalization(**settings, **plain)):
            layer.build([None, *shape])
            layer.gamma.assign(np.linspace(0.5, 2.0, layer.gamma.shape[0]))
            yield layer

    synced, plain = layers()
    run = tf.function(train) if as_function else train
    for _ in range(2):
        y, (of_x, of_gamma, of_beta) = run(synced, tf.constant(joined[own]), tf.constant(seed[own]))
        expected, (all_x, all_gamma, all_beta) = train(plain, tf.constant(joined), tf.constant(seed))
    assert_close(y, expected[own], 1e-4)
    assert_close(of_x, all_x[own], 1e-3)
    # Gradients of parameters are local, to be reduced by the optimizer.
    assert_close(hvd.allreduce(of_gamma, op=hvd.Sum), all_gamma, 1e-3)
    assert_close(hvd.allreduce(of_beta, op=hvd.Sum), all_beta, 1e-3)
    assert_close(synced.moving_mean, plain.moving_mean, 1e-4)
    assert_close(synced.moving_variance, plain.moving_variance, 1e-4)
    x = tf.constant(joined)
    assert_close(synced(x, training=False), plain(x, training=False), 1e-4)


def forms():
    for as_function in (False, True):
        compare((3,), -1, as_function)
        compare((4, 4, 3), -1, as_function)
        compare((3, 4), 1, as_function)
    compare((3,), -1, False, empty=True)


def precision_and_masks():
    rank, size = hvd.rank(), hvd.size()
    # Values far from zero, for which E[x^2] - E[x]^2 would lose all digits of the variance.
    x = tf.constant(np.random.default_rng(rank).normal(1000.0, 0.1, (50, 2)).astype(np.float32))
    whole = hvd.allgather(x).numpy().astype(np.float64)
    mean, variance = joined_moments(x, [0])
    assert_close(mean, whole.mean(0, keepdims=True), 1e-6)
    assert_close(variance, whole.var(0, keepdims=True), 1e-4)
    mask = tf.constant([i % (rank + 2) == 0 for i in range(50)])
    counted = np.concatenate([whole[50 * r : 50 * r + 50][np.arange(50) % (r + 2) == 0] for r in range(size)])
    mean, variance = joined_moments(x, [0], mask)
    assert_close(mean, counted.mean(0, keepdims=True), 1e-6)
    assert_close(variance, counted.var(0, keepdims=True), 1e-4)
    empty = joined_moments(x, [0], tf.zeros([50], tf.bool))
    assert not np.any(empty)
    layer = hvd.SyncBatchNormalization(dtype="mixed_float16")
    y = layer(tf.cast(x - 1000.0, tf.float16), training=True)
    assert y.dtype == tf.float16
    together = hvd.allgather(tf.cast(y, tf.float32)).numpy()
    assert abs(together.mean()) < 1e-2
    frozen = hvd.SyncBatchNormalization(trainable=False)
    assert_close(frozen(x, training=True), x / np.sqrt(1.001), 1e-3)


def refusals_and_saving(folder):
    with pytest.raises(ValueError, match="fused"):
        hvd.SyncBatchNormalization(fused=True)
    layer = hvd.SyncBatchNormalization(momentum=0.3)
    copy = type(layer).from_config(layer.get_config())
    assert copy.momentum == 0.3
    model = tf.keras.Sequential([tf.keras.layers.Input([3]), layer])
    path = f"{folder}/{hvd.rank()}.{'h5' if legacy() else 'keras'}"
    model.save(path)
    loaded = tf.keras.models.load_model(path)
    assert type(loaded.layers[-1]) is hvd.SyncBatchNormalization
    assert loaded.layers[-1].momentum == 0.3


@pytest.mark.heavy
@pytest.mark.parametrize("keras", ["tensorflow", pytest.param("legacy", marks=pytest.mark.heavy)])
def test_sync_batch_normalization(keras_pool, tmp_path, keras):
    pool = keras_pool(keras)(3)
    pool.run(forms, timeout=120.0)
    pool.run(precision_and_masks)
    pool.run(refusals_and_saving, str(tmp_path))


@on_tensorflow(1)
def test_single_process():
    x = tf.constant(np.random.default_rng(1).normal(size=(5, 2)).astype(np.float32))
    assert_close(hvd.SyncBatchNormalization()(x, training=True), tf.keras.layers.BatchNormalization()(x, training=True))
