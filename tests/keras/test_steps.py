"""Steps of Keras' fit: reported by the optimizer on PyTorch, detected by the engine on TensorFlow and JAX."""

import numpy as np
import pytest

from tests.keras.modules import hvd, keras


def train(batches):
    import time

    class Slow(keras.callbacks.Callback):
        def on_train_batch_begin(self, *args, **kwargs):
            if hvd.rank() == 1:
                time.sleep(0.02)

    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
    rows = np.ones((2 * batches, 8), np.float32)
    callbacks = [Slow(), hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    # Between epochs ranks exchange more than gradients.
    model.fit(rows, rows[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=callbacks)
    return hvd.stats()


@pytest.mark.parametrize(("backend", "data_is_seen"), [("tensorflow", False), ("torch", True), ("jax", False)])
def test_steps_of_fit_are_counted(keras_pool, backend, data_is_seen):
    # In a new job: steps are counted by names of operations, which earlier tests of a job may have used.
    first, second = keras_pool(backend)(2).run(train, 60, fresh=True)
    for stats in (first, second):
        assert stats["made"] == 60
        assert stats["step_seconds"] > 0.018
        assert (stats["data_seconds"] is not None) == data_is_seen
    if backend != "tensorflow":  # it waits where the wait cannot be measured
        # A busy machine adds some.
        assert first["exposed_seconds"] > max(0.01, second["exposed_seconds"])
