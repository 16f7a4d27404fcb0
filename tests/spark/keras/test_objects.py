"""Serialization of optimizers for the ranks."""

import pickle

import numpy as np

from tests.keras.modules import keras
from tests.later import Later
from tests.ranks import on_keras_on_tensorflow

objects = Later("horovod.spark.keras.objects")


@on_keras_on_tensorflow(1)
def test_an_optimizer_of_another_model_starts_anew():
    def fit(optimizer):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(optimizer=optimizer, loss="mse")
        model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
        return int(keras.ops.convert_to_numpy(optimizer.iterations))

    own = keras.optimizers.SGD(0.5, momentum=0.9)
    own.note = "kept"
    adam, scaled = keras.optimizers.AdamW(0.25), keras.optimizers.LossScaleOptimizer(own)
    for built in (False, True):
        for optimizer in (adam, scaled):
            sent = objects.unpack(pickle.loads(pickle.dumps(objects.pack(optimizer))))
            assert type(sent) is type(optimizer)
            inner = getattr(sent, "inner_optimizer", sent)
            assert not inner.built
            assert optimizer.built == built
            assert getattr(inner, "note", "kept") == "kept"
            assert float(keras.ops.convert_to_numpy(sent.learning_rate)) == (0.25 if optimizer is adam else 0.5)
            assert fit(sent) == 1
        if not built:
            assert fit(adam) == fit(scaled) == 1
