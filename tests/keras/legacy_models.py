"""A small model and data for the tests of Keras 2, which is tf.keras in their workers."""

from typing import Any

import numpy as np

from tests.later import Later

tf = Later("tensorflow")
hvd = Later("horovod.tensorflow.keras")


def data(samples: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.standard_normal((samples, 5)).astype("float32")
    return x, np.tanh(x[:, :1] * x[:, 1:2]).astype("float32")


def shard(x: np.ndarray, batch: int) -> np.ndarray:
    """Return this rank's samples, so that ``batch`` of them on each rank are one batch of all."""
    size, rank = hvd.size(), hvd.rank()
    return np.concatenate([x[i + rank * batch : i + (rank + 1) * batch] for i in range(0, len(x), batch * size)])


def model() -> Any:
    tf.keras.utils.set_random_seed(1)
    hidden = tf.keras.layers.Dense(7, activation="tanh", input_shape=(5,))
    return tf.keras.Sequential([hidden, tf.keras.layers.Dense(1, dtype="float32")])


def kind(legacy: bool) -> Any:
    """Return the module of the new or the legacy optimizers."""
    return tf.keras.optimizers.legacy if legacy else tf.keras.optimizers


def assert_equal(actual: Any, expected: Any) -> None:
    for a, b in zip(actual.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
