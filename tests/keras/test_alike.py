"""A distributed optimizer makes the updates of the one that was given, whatever its config tells of it."""

import inspect
import sys

import numpy as np

from tests.keras.modules import hvd, keras, models
from tests.ranks import on_keras3


@on_keras3(2)
def test_what_no_config_tells_of_is_kept():
    def with_attribute(name, value):
        made = models.Boosted(0.01)
        setattr(made, name, value)
        return made

    def by_a_function():
        made = models.Boosted(0.01)
        factor, plain = 3.0, made.update_step
        made.update_step = lambda gradient, *rest: plain(gradient * factor, *rest)
        return made

    ways = {
        "an argument": lambda: models.Boosted(0.01, boost=4.0),
        "an attribute set later": lambda: with_attribute("boost", 4.0),
        "an attribute of the base": lambda: with_attribute("clipvalue", 1e-3),
        "a rate set later": lambda: with_attribute("learning_rate", 0.05),
        "a schedule": lambda: keras.optimizers.SGD(models.Constant(0.05)),
        "a function": by_a_function,
        "an inner one": lambda: keras.optimizers.LossScaleOptimizer(models.Boosted(0.01, boost=4.0), initial_scale=4.0),
    }
    x, y = models.data(8)
    for name, make in ways.items():
        plain = models.plainly(make, x, y, 8)
        ours = models.model()
        ours.compile(optimizer=hvd.DistributedOptimizer(make()), loss="mse")
        ours.fit(x, y, batch_size=8, shuffle=False, verbose=0)  # the same rows everywhere: reduced means own
        for a, b in zip(models.weights(ours), models.weights(plain), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5, err_msg=name)


@on_keras3(1)
def test_optimizers_of_keras_are_made_anew():
    """All optimizers of Keras, each argument away from its default, are made anew: the given ones stay plain."""
    from horovod._keras.alike import differing

    base = keras.optimizers.Optimizer
    kinds = [kind for kind in vars(keras.optimizers).values() if inspect.isclass(kind) and issubclass(kind, base)]
    kinds = [kind for kind in kinds if kind not in (base, keras.optimizers.LossScaleOptimizer)]
    kinds = [kind for kind in kinds if "optimizer_map" not in inspect.signature(kind.__init__).parameters]
    assert len(kinds) > 8
    tried = 0
    for kind in kinds:
        for key, parameter in inspect.signature(kind.__init__).parameters.items():
            default = parameter.default
            if key in ("self", "kwargs"):
                continue
            if isinstance(default, bool):
                value = not default
            elif isinstance(default, float):
                value = default * 0.5 or 0.25
            elif key == "gradient_accumulation_steps":
                value = 3
            elif key == "exclude_layers":
                value = ["out"]
            elif key == "name":
                value = "mine"
            elif isinstance(default, int):
                value = default + 1
            else:
                continue
            plain = kind(**{key: value})
            made = hvd.DistributedOptimizer(plain)
            assert made is not plain, (kind, key)
            another = kind.from_config({**plain.get_config(), "name": "another"})
            assert differing(sys.modules["keras"], plain, another) == ["name"]
            tried += 1
    assert tried > 50
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    plain = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(schedule))
    assert hvd.DistributedOptimizer(plain) is not plain


def of_keras_2(legacy):
    import tensorflow as tf

    import horovod.tensorflow.keras as hvd

    keras = tf.keras
    kinds = keras.optimizers.legacy if legacy else keras.optimizers

    class Boosted(kinds.SGD):
        def __init__(self, learning_rate=0.1, boost=1.0, **kwargs):
            super().__init__(learning_rate, **kwargs)
            self.boost = boost

    for plain in (kinds.SGD(0.1, momentum=0.9), kinds.Adam(0.1, beta_1=0.5), Boosted(0.1)):
        made = hvd.DistributedOptimizer(plain)
        assert made is not plain
        assert made.get_config() == plain.get_config()
    for plain in (Boosted(0.1, boost=4.0), Boosted(0.1)):
        plain.boost = 4.0
        made = hvd.DistributedOptimizer(plain)
        assert made.boost == 4.0
        assert float(made.learning_rate) == np.float32(0.1)


def test_optimizers_of_keras_2(keras_pool):
    for legacy in (False, True):
        keras_pool("legacy")(1).run(of_keras_2, legacy)
