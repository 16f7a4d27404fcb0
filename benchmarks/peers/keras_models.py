"""Models and data for both TensorFlow peers, so that only the distribution differs.

Callers pass in the Keras module, which can be Keras 2 or 3.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import tensorflow as tf
from tensorflow_cases import STEPS

CLASSES = 10
EXAMPLES = 1024


def keras_module(version: int) -> ModuleType:
    """Return the module of Keras 2 (tf_keras, or TensorFlow's own) or of Keras 3."""
    if version == 3:
        import keras
    else:
        keras = tf.keras
    return keras


def network(keras: ModuleType, kind: str) -> Any:
    """Return a model with 0.67 million ("mlp") or 0.4 million ("cnn") parameters."""
    layers = keras.layers
    if kind == "mlp":
        inner = [layers.Flatten(), layers.Dense(512, activation="relu"), layers.Dense(512, activation="relu")]
    else:
        inner = [
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(640, activation="relu"),
        ]
    return keras.Sequential([layers.Input((28, 28, 1)), *inner, layers.Dense(CLASSES)])


def data(batch: int) -> tf.data.Dataset:
    """Return an endless dataset of identical batches, which TensorFlow does not shard."""
    images = tf.random.stateless_normal((EXAMPLES, 28, 28, 1), (1, 2))
    labels = tf.random.stateless_uniform((EXAMPLES,), (3, 4), 0, CLASSES, tf.int32)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    batches = tf.data.Dataset.from_tensor_slices((images, labels)).batch(batch, drop_remainder=True).cache()
    return batches.repeat().prefetch(2).with_options(options)


def compile_for(keras: ModuleType, model: Any, optimizer: Any) -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])


def fit(model: Any, batches: tf.data.Dataset) -> Any:
    return model.fit(batches, epochs=1, steps_per_epoch=STEPS, verbose=0)


def gradients(shapes: list[tuple[int, ...]]) -> list[tf.Tensor]:
    """Return tensors of these shapes in backward order (last layer first)."""
    return [tf.fill(shape, 0.5) for shape in reversed(shapes)]
