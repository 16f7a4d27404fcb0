"""Small models, data and references for the Keras tests; runs in the workers."""

from typing import Any

import keras
import numpy as np

import horovod.keras as hvd

FEATURES = 5


def data(samples: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.standard_normal((samples, FEATURES)).astype("float32")
    return x, np.tanh(x[:, :1] * x[:, 1:2] + x[:, 2:3]).astype("float32")


def shard(x: np.ndarray, batch: int) -> np.ndarray:
    """Return this rank's samples, so that ``batch`` of them on each rank form a global batch of ``batch * size``."""
    size, rank = hvd.size(), hvd.rank()
    return np.concatenate([x[i + rank * batch : i + (rank + 1) * batch] for i in range(0, len(x), batch * size)])


def model(seed: int = 1, **dense: Any) -> Any:
    keras.utils.set_random_seed(seed)
    layers = [
        keras.layers.Input((FEATURES,)),
        keras.layers.Dense(7, activation="tanh", **dense),
        keras.layers.Dense(1, dtype="float32"),
    ]
    return keras.Sequential(layers)


def line() -> Any:
    """Return a model that is linear without bias and whose weights are 0."""
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    return keras.Sequential([keras.layers.Input((FEATURES,)), dense])


def weights(model: Any) -> list[np.ndarray]:
    return [np.array(weight) for weight in model.get_weights()]


def untraced() -> dict[str, Any]:
    """Return arguments of ``compile`` that make few steps fast: TensorFlow traces no functions."""
    return {"run_eagerly": True} if keras.config.backend() == "tensorflow" else {}


def train_alone(make_optimizer: Any, x: np.ndarray, y: np.ndarray, batch: int, epochs: int = 1) -> Any:
    """Return a model that this process trained alone on all samples."""
    alone = model()
    alone.compile(optimizer=make_optimizer(), loss="mse", **untraced())
    alone.fit(x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0)
    return alone


def assert_equal(actual: Any, expected: Any, tolerance: float = 2e-5) -> None:
    for a, b in zip(weights(actual), weights(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def assert_same_everywhere(model: Any) -> None:
    from horovod.common.objects import allgather_object

    first, *rest = allgather_object(weights(model), "weights")
    for other in rest:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a, b)


class Boosted(keras.optimizers.SGD):
    """An optimizer with an extra argument and without get_config."""

    def __init__(self, learning_rate: Any = 0.1, boost: float = 1.0, **kwargs: Any) -> None:
        super().__init__(learning_rate, **kwargs)
        self.boost = boost

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient * self.boost, variable, learning_rate)


class Constant(keras.optimizers.schedules.LearningRateSchedule):
    """An optimizer whose config lacks its argument."""

    def __init__(self, peak: float = 0.001) -> None:
        self.peak = peak

    def __call__(self, step: Any) -> Any:
        return keras.ops.convert_to_tensor(self.peak, "float32")

    def get_config(self) -> dict[str, Any]:
        return {}
