"""Serialization of optimizers for the ranks."""

import pickle

import numpy as np
import pytest

from horovod.common.contract.pickling import dumps
from horovod.common.objects import loads
from tests.keras.modules import keras, models
from tests.later import Later
from tests.ranks import on_keras_on_tensorflow

objects = Later("horovod.spark.keras.objects")


@on_keras_on_tensorflow(1)
def test_what_no_config_tells_of_reaches_the_ranks():
    def sent(optimizer):
        return objects.unpack(loads(dumps(objects.pack(optimizer))))

    later = models.Boosted(0.1)
    later.boost, later.learning_rate = 4.0, 0.5
    for given in (models.Boosted(0.5, boost=4.0), later):
        assert sent(given).boost == 4.0
        assert float(keras.ops.convert_to_numpy(sent(given).learning_rate)) == 0.5
    assert sent(keras.optimizers.SGD(models.Constant(0.25)))._learning_rate.peak == 0.25
    assert objects.pack(keras.optimizers.Adam(0.1)).more == {}

    class Strange(keras.optimizers.SGD):
        def __setattr__(self, name, value):
            super().__setattr__(name, 0 if name == "own" else value)

    strange = Strange(0.1)
    strange.__dict__["own"] = 5
    with pytest.raises(ValueError, match=r"Strange cannot be sent to the ranks, because .* does not return own;"):
        objects.pack(strange)


@on_keras_on_tensorflow(1)
def test_an_optimizer_that_has_trained_another_model_begins_anew():
    def fit(optimizer):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(optimizer=optimizer, loss="mse")
        model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
        return int(keras.ops.convert_to_numpy(optimizer.iterations))

    own = keras.optimizers.SGD(0.5, momentum=0.9)
    own.note = "kept"
    adam, scaled = keras.optimizers.AdamW(0.25), keras.optimizers.LossScaleOptimizer(own)
    for begun in (False, True):
        for optimizer in (adam, scaled):
            sent = objects.unpack(pickle.loads(pickle.dumps(objects.pack(optimizer))))
            assert type(sent) is type(optimizer)
            inner = getattr(sent, "inner_optimizer", sent)
            assert not inner.built
            assert optimizer.built == begun
            assert getattr(inner, "note", "kept") == "kept"
            assert float(keras.ops.convert_to_numpy(sent.learning_rate)) == (0.25 if optimizer is adam else 0.5)
            assert fit(sent) == 1
        if not begun:
            assert fit(adam) == fit(scaled) == 1
