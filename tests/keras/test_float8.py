"""Variables that are overwritten by their gradients, as for float8, and layers that request synchronization."""

import numpy as np
import pytest

from tests.keras.modules import hvd, keras, models
from tests.ranks import on_keras3


@on_keras3(2)
def test_overwritten_variables_get_the_maximum():
    rank, size = hvd.rank(), hvd.size()

    def updated(**options):
        """Return the negated update of an ordinary variable whose gradient is rank + 1."""
        plain, history, own = (keras.Variable(np.zeros(count, "float32")) for count in (2, 3, 3))
        for one in (history, own):
            one.overwrite_with_gradient = True
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **options)
        optimizer.register_local_var(own)
        seen = [np.roll(np.arange(3.0, dtype="float32"), r) for r in range(size)]
        for passes in range(options.get("backward_passes_per_step", 1)):
            grads = [np.full(2, rank + 1.0, "float32"), seen[rank] * (2 - passes), seen[rank]]
            optimizer.apply([keras.ops.convert_to_tensor(grad) for grad in grads], [plain, history, own])
        np.testing.assert_allclose(keras.ops.convert_to_numpy(history), 2 * np.max(seen, 0))
        np.testing.assert_allclose(keras.ops.convert_to_numpy(own), seen[rank])
        return -keras.ops.convert_to_numpy(plain)

    mean = (size + 1) / 2
    np.testing.assert_allclose(updated(), mean)
    np.testing.assert_allclose(updated(gradient_predivide_factor=2.0, groups=1), mean)
    np.testing.assert_allclose(updated(compression=hvd.Compression.fp16, op=hvd.Sum), size * mean)
    if keras.config.backend() != "jax":
        np.testing.assert_allclose(updated(backward_passes_per_step=2, average_aggregated_gradients=True), mean)


@pytest.mark.heavy
@on_keras3(2)
def test_float8_is_as_in_one_process():
    size, batch = hvd.size(), 4
    x, y = models.data(batch * size * 3)
    x[:: batch * size] *= 30  # in rank 0's part

    def model():
        keras.utils.set_random_seed(1)
        result = keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(16), keras.layers.Dense(1)])
        result.quantize("float8")
        return result

    alone, distributed = model(), model()
    alone.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
    alone.fit(x, y, batch_size=batch * size, shuffle=False, verbose=0)
    distributed.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
    distributed.fit(models.shard(x, batch), models.shard(y, batch), batch_size=batch, shuffle=False, verbose=0)
    models.assert_same_everywhere(distributed)
    for left, right in zip(distributed.weights, alone.weights, strict=True):
        actual, expected = (keras.ops.convert_to_numpy(one) for one in (left, right))
        if "outputs_grad" in left.path:
            # A rank's loss is the mean over fewer rows, so its quantized gradients are larger.
            expected = expected * (1 if "scale" in left.path and expected == 1 else size)
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3, err_msg=left.path)


def synchronized():
    import warnings

    import tensorflow as tf

    import horovod.tensorflow as hvdtf
    import horovod.tensorflow.keras as hvd

    layers = tf.keras.layers
    for layer, warned in (
        (layers.BatchNormalization(synchronized=True, name="bn"), True),
        (hvdtf.SyncBatchNormalization(name="bn"), False),
    ):
        model = tf.keras.Sequential([layers.Input((3,)), layers.Dense(2), layer, layers.Dense(1)])
        model.compile(optimizer=hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)), loss="mse")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                model.fit(np.ones((4, 3)), np.ones((4, 1)), batch_size=4, verbose=0)
        texts = [str(one.message) for one in caught if "synchronized=True" in str(one.message)]
        assert len(texts) == warned
        assert all(
            "the layers bn have" in text and "horovod.tensorflow.SyncBatchNormalization" in text for text in texts
        )


@pytest.mark.heavy
@pytest.mark.parametrize("backend", ["tensorflow", "legacy"])
def test_layer_with_synchronization(keras_pool, backend):
    keras_pool(backend)(2).run(synchronized)
