"""Optimizers on their way to the ranks."""

import pytest


def optimizers():
    import keras

    from horovod.common.contract.pickling import dumps
    from horovod.common.objects import loads
    from horovod.spark.keras import objects

    class Boosted(keras.optimizers.SGD):
        """With an argument of its own and no get_config."""

        def __init__(self, learning_rate=0.1, boost=1.0, **kwargs):
            super().__init__(learning_rate, **kwargs)
            self.boost = boost

    class Stub(keras.optimizers.schedules.LearningRateSchedule):
        def __init__(self, peak=0.001):
            self.peak = peak

        def __call__(self, step):
            return self.peak

        def get_config(self):
            return {}

    def sent(optimizer):
        return objects.unpack(loads(dumps(objects.pack(optimizer))))

    later = Boosted(0.1)
    later.boost, later.learning_rate = 4.0, 0.5
    for given in (Boosted(0.5, boost=4.0), later):
        assert sent(given).boost == 4.0
        assert float(keras.ops.convert_to_numpy(sent(given).learning_rate)) == 0.5
    assert sent(keras.optimizers.SGD(Stub(0.25)))._learning_rate.peak == 0.25
    assert objects.pack(keras.optimizers.Adam(0.1)).more == {}

    class Strange(keras.optimizers.SGD):
        def __setattr__(self, name, value):
            super().__setattr__(name, 0 if name == "own" else value)

    strange = Strange(0.1)
    strange.__dict__["own"] = 5
    with pytest.raises(ValueError, match=r"Strange cannot be sent to the ranks, because .* does not tell of own;"):
        objects.pack(strange)


def test_what_no_config_tells_of_reaches_the_ranks(keras_pool):
    keras_pool("tensorflow")(1).run(optimizers)


def trained_before():
    from pickle import dumps, loads

    import keras
    import numpy as np

    from horovod.spark.keras import objects

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
            sent = objects.unpack(loads(dumps(objects.pack(optimizer))))
            assert type(sent) is type(optimizer)
            inner = getattr(sent, "inner_optimizer", sent)
            assert not inner.built
            assert optimizer.built == begun
            assert getattr(inner, "note", "kept") == "kept"
            assert float(keras.ops.convert_to_numpy(sent.learning_rate)) == (0.25 if optimizer is adam else 0.5)
            assert fit(sent) == 1
        if not begun:
            assert fit(adam) == fit(scaled) == 1


def test_an_optimizer_that_has_trained_another_model_begins_anew(keras_pool):
    keras_pool("tensorflow")(1).run(trained_before)
