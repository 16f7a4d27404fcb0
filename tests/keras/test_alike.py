"""A distributed optimizer makes the same updates as the wrapped one, even if its config is incomplete."""

import numpy as np
import pytest

from tests.keras import legacy_models
from tests.keras.modules import hvd, keras, models
from tests.ranks import on_keras2, on_keras3


@pytest.mark.heavy
@on_keras3(2)
def test_attributes_outside_the_config_are_kept():
    def with_attribute(name, value):
        optimizer = models.Boosted(0.01)
        setattr(optimizer, name, value)
        return optimizer

    def by_a_function():
        optimizer = models.Boosted(0.01)
        factor, plain = 3.0, optimizer.update_step
        optimizer.update_step = lambda gradient, *rest: plain(gradient * factor, *rest)
        return optimizer

    ways = {
        "an argument": lambda: models.Boosted(0.01, boost=4.0),
        "an attribute set later": lambda: with_attribute("boost", 4.0),
        "an attribute of the base": lambda: with_attribute("clipvalue", 1e-3),
        "a rate set later": lambda: with_attribute("learning_rate", 0.05),
        "a schedule": lambda: keras.optimizers.SGD(models.Constant(0.05)),
        "a function": by_a_function,
        "an inner one": lambda: keras.optimizers.LossScaleOptimizer(models.Boosted(0.01, boost=4.0), initial_scale=4.0),
    }
    if keras.config.backend() == "jax":
        del ways["an inner one"]  # scales losses within a compiled step only
    gradients = [np.full((3,), 0.5, "float32"), np.full((2, 2), -0.25, "float32")]  # the same on all ranks

    def change_of(optimizer):
        """Return how two updates change the variables."""
        variables = [keras.Variable(np.ones_like(gradient)) for gradient in gradients]
        optimizer.build(variables)
        scale = getattr(optimizer, "initial_scale", 1.0)
        for _ in range(2):
            optimizer.apply([keras.ops.convert_to_tensor(gradient * scale) for gradient in gradients], variables)
        return [keras.ops.convert_to_numpy(variable) for variable in variables]

    for name, make in ways.items():
        for distributed, plain in zip(change_of(hvd.DistributedOptimizer(make())), change_of(make()), strict=True):
            np.testing.assert_allclose(distributed, plain, rtol=2e-5, err_msg=name)


@pytest.mark.parametrize("legacy", [False, True])
@on_keras2(1)
def test_optimizers_of_keras_2(legacy):
    kinds = legacy_models.kind(legacy)

    class Boosted(kinds.SGD):
        def __init__(self, learning_rate=0.1, boost=1.0, **kwargs):
            super().__init__(learning_rate, **kwargs)
            self.boost = boost

    for plain in (kinds.SGD(0.1, momentum=0.9), kinds.Adam(0.1, beta_1=0.5), Boosted(0.1)):
        optimizer = legacy_models.hvd.DistributedOptimizer(plain)
        assert optimizer is not plain
        assert optimizer.get_config() == plain.get_config()
    for plain in (Boosted(0.1, boost=4.0), Boosted(0.1)):
        plain.boost = 4.0
        optimizer = legacy_models.hvd.DistributedOptimizer(plain)
        assert optimizer.boost == 4.0
        assert float(optimizer.learning_rate) == np.float32(0.1)
