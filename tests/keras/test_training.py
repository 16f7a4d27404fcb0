"""N workers on parts of the batches train like one process on whole batches, in every kind of update."""

import numpy as np
import pytest

from tests import weighted
from tests.keras.modules import hvd, keras, models
from tests.ranks import on_keras3, on_smoke_keras3, on_stateful_keras3


@on_smoke_keras3(2)
def test_two_workers_train_like_one():
    """The smoke test of each backend: one step of fit, whose result follows from all samples."""
    x, y = models.data(8)
    distributed = models.line()
    distributed.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    distributed.fit(models.shard(x, 4), models.shard(y, 4), batch_size=4, shuffle=False, verbose=0)
    np.testing.assert_allclose(distributed.get_weights()[0], 0.2 * (x * y).mean(0)[:, None], rtol=1e-5, atol=1e-6)


@on_keras3(2, pytest.param(3, marks=pytest.mark.heavy))
def test_workers_on_shards_equal_one_process_on_all():
    size = hvd.size()
    random = np.random.default_rng(size)
    for turn in range(3):
        batch, steps = int(random.integers(1, 7)), int(random.integers(2, 5))
        x, y = models.data(batch * size * steps, seed=int(random.integers(1000)))
        rate = float(random.uniform(0.01, 0.1))
        make = [
            lambda rate=rate: keras.optimizers.SGD(rate, momentum=0.9),
            lambda rate=rate: keras.optimizers.Adam(rate, epsilon=1e-3, clipnorm=0.5),
            lambda rate=rate: keras.optimizers.SGD(rate, use_ema=True, ema_overwrite_frequency=2),
        ][turn]
        alone = models.train_alone(make, x, y, batch * size, epochs=2)
        distributed = models.model()
        distributed.compile(optimizer=hvd.DistributedOptimizer(make()), loss="mse")
        parts = models.shard(x, batch), models.shard(y, batch)
        distributed.fit(*parts, batch_size=batch, epochs=2, shuffle=False, verbose=0)
        models.assert_equal(distributed, alone)
        models.assert_same_everywhere(distributed)
        assert int(distributed.optimizer.iterations) == int(alone.optimizer.iterations) == 2 * steps


@pytest.mark.heavy
@on_keras3(2, timeout=120)
def test_gradients_are_reduced_once_on_every_code_path():
    """With Sum, a gradient that is reduced twice or not at all changes the result."""
    size, batch, steps = hvd.size(), 4, 4
    x, y = models.data(batch * size * steps)
    parts = models.shard(x, batch), models.shard(y, batch)
    alone = models.train_alone(lambda: keras.optimizers.SGD(0.02 * size), x, y, batch * size)

    def compiled(**options):
        net = models.model()
        net.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.02), op=hvd.Sum), loss="mse", **options)
        return net

    def batches():
        for begin in range(0, len(parts[0]), batch):
            yield parts[0][begin : begin + batch], parts[1][begin : begin + batch]

    done = []
    options = [{}, {"run_eagerly": True}, {"jit_compile": False}]
    if keras.config.backend() != "torch":
        options.append({"steps_per_execution": 2})
    if keras.config.backend() == "jax":
        options.append({"jit_compile": True})
    for option in options:
        trained = compiled(**option)
        trained.fit(*parts, batch_size=batch, shuffle=False, verbose=0)
        models.assert_equal(trained, alone)
        done.append(trained)

    trained = compiled()
    for xs, ys in batches():
        trained.train_on_batch(xs, ys)
    models.assert_equal(trained, alone)

    # An optimizer with state keeps it and becomes distributed itself.
    built = models.model()
    optimizer = keras.optimizers.SGD(0.02)
    optimizer.build(built.trainable_variables)
    distributed = hvd.DistributedOptimizer(optimizer, op=hvd.Sum)
    assert distributed is optimizer
    # Wrapping a distributed optimizer again has no effect.
    twice = hvd.DistributedOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD(0.02)), op=hvd.Sum)
    for trained, optimizer in ((built, distributed), (models.model(), twice)):
        trained.compile(optimizer=optimizer, loss="mse", **models.untraced())
        trained.fit(*parts, batch_size=batch, shuffle=False, verbose=0)
        models.assert_equal(trained, alone)
    for trained in done:
        models.assert_same_everywhere(trained)


@pytest.mark.heavy
@on_keras3(3)
def test_loops_of_the_user():
    """The user's own gradients through apply, apply_gradients and a train_step."""
    backend = keras.config.backend()
    rank, size = hvd.rank(), hvd.size()
    total = sum(range(1, size + 1))

    def start():
        variables = [keras.Variable(np.ones(3, "float32")), keras.Variable(np.zeros((2, 2), "float32"))]
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
        grads = [keras.ops.ones(3) * (rank + 1), keras.ops.ones((2, 2)) * (rank + 1)]
        return variables, optimizer, grads

    def check(variables, times=1):
        np.testing.assert_allclose(keras.ops.convert_to_numpy(variables[0]), np.full(3, 1.0 - times * total))
        np.testing.assert_allclose(keras.ops.convert_to_numpy(variables[1]), np.full((2, 2), -times * total * 1.0))

    variables, optimizer, grads = start()
    optimizer.apply(grads, variables)
    check(variables)
    optimizer.apply(grads)  # to the variables that it already knows; the caller's gradients are unchanged
    check(variables, 2)
    variables, optimizer, grads = start()
    optimizer.apply_gradients(zip(grads, variables, strict=True))
    check(variables)
    if backend == "jax":
        return

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")

        def call(self, x):
            return self.dense(x)

        def train_step(self, batch):
            x, _ = batch
            if backend == "tensorflow":
                import tensorflow as tf

                with tf.GradientTape() as tape:
                    loss = keras.ops.sum(self(x))
                gradients = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            else:
                self.zero_grad()
                loss = keras.ops.sum(self(x))
                loss.backward()
                import torch

                with torch.no_grad():
                    self.optimizer.apply([v.value.grad for v in self.trainable_weights], self.trainable_weights)
            return {"loss": loss}

    model = Model()
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), op=hvd.Sum))
    model.fit(np.full((2, 3), rank + 1.0, "float32"), np.zeros((2, 1), "float32"), batch_size=2, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], np.full((3, 1), -0.5 * 2 * total))


@pytest.mark.heavy
@on_stateful_keras3(2)
def test_backward_passes_per_step():
    size, batch = hvd.size(), 2
    x, y = models.data(batch * size * 6)
    # Two averaged passes of each rank equal one batch of all their samples.
    alone = models.train_alone(lambda: keras.optimizers.SGD(0.05, momentum=0.9), x, y, batch * size * 2)
    parts = models.shard(x, batch), models.shard(y, batch)
    for average, rate in ((True, 0.05), (False, 0.025)):
        for eagerly in (False, True):
            distributed = models.model()
            optimizer = hvd.DistributedOptimizer(
                keras.optimizers.SGD(rate, momentum=0.9),
                backward_passes_per_step=2,
                average_aggregated_gradients=average,
            )
            distributed.compile(optimizer=optimizer, loss="mse", run_eagerly=eagerly)
            distributed.fit(*parts, batch_size=batch, shuffle=False, verbose=0)
            models.assert_equal(distributed, alone)
            assert int(optimizer.iterations) == 6, "every pass counts as an iteration"
            assert int(optimizer._agg_helper.counter) == 0
            assert len(optimizer.variables) == len(alone.optimizer.variables)


@pytest.mark.heavy
@on_keras3(2)
def test_an_infinite_gradient_on_one_rank_skips_the_step_on_all():
    rank = hvd.rank()
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        x, y = models.data(8 * 4)
        bad = x.copy()
        if rank == 1:
            bad[8, 0] = np.inf  # in its second batch only
        for wrapped in ("by Keras", "by the user", "outside"):
            distributed = models.model()
            optimizer = keras.optimizers.SGD(0.01)
            if wrapped == "by the user":
                optimizer = hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))
            elif wrapped == "outside":
                optimizer = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(optimizer))
            else:
                optimizer = hvd.DistributedOptimizer(optimizer)
            for _ in range(2):  # compiling again wraps again
                distributed.compile(optimizer=optimizer, loss="mse")
            before = models.weights(distributed)
            distributed.fit(bad, y, batch_size=8, shuffle=False, verbose=0)
            assert isinstance(distributed.optimizer, keras.optimizers.LossScaleOptimizer)
            assert int(distributed.optimizer.iterations) == 3, "all ranks leave out the second batch"
            assert float(keras.ops.convert_to_numpy(distributed.optimizer.dynamic_scale)) == 2.0**14
            models.assert_same_everywhere(distributed)
            assert all(np.isfinite(weight).all() for weight in models.weights(distributed))
            assert any((a != b).any() for a, b in zip(before, models.weights(distributed), strict=True))
    finally:
        keras.mixed_precision.set_dtype_policy("float32")


@pytest.mark.heavy
@on_keras3(2)
def test_loss_scaling_with_accumulation():
    size = hvd.size()
    x, y = models.data(2 * size * 4)
    parts = models.shard(x, 2), models.shard(y, 2)
    plain = models.train_alone(lambda: keras.optimizers.SGD(0.1), x, y, 4 * size)
    ways = [({"gradient_accumulation_steps": 2}, {})]
    if keras.config.backend() != "jax":
        ways.append(({}, {"backward_passes_per_step": 2, "average_aggregated_gradients": True}))
    for own, options in ways:
        distributed = models.model()
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, **own), initial_scale=8.0)
        distributed.compile(optimizer=hvd.DistributedOptimizer(optimizer, **options), loss="mse")
        distributed.fit(*parts, batch_size=2, shuffle=False, verbose=0)
        models.assert_equal(distributed, plain)
        models.assert_same_everywhere(distributed)


@pytest.mark.heavy
@on_keras3(2)
def test_embeddings():
    size = hvd.size()
    tokens = np.random.default_rng(3).integers(0, 10, (8 * size, 4))
    y = tokens.sum(1, keepdims=True).astype("float32") / 40

    def model():
        keras.utils.set_random_seed(2)
        layers = [keras.layers.Embedding(10, 3), keras.layers.Flatten(), keras.layers.Dense(1)]
        return keras.Sequential([keras.layers.Input((4,)), *layers])

    alone = model()
    alone.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", **models.untraced())
    alone.fit(tokens, y, batch_size=4 * size, shuffle=False, verbose=0)
    parts = models.shard(tokens, 4), models.shard(y, 4)
    for options in ({}, {"sparse_as_dense": True}, {"groups": 1}, {"sparse_as_dense": True, "groups": 1}):
        distributed, optimizer = model(), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), **options)
        distributed.compile(optimizer=optimizer, loss="mse", **(models.untraced() if options else {}))
        distributed.fit(*parts, batch_size=4, shuffle=False, verbose=0)
        models.assert_equal(distributed, alone)
    if keras.config.backend() == "tensorflow":
        distributed = model()
        distributed.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), backward_passes_per_step=2))
        distributed.compile(optimizer=distributed.optimizer, loss="mse")
        with pytest.raises(ValueError, match="sparse_as_dense"):
            distributed.fit(*parts, batch_size=4, shuffle=False, verbose=0)


@pytest.mark.heavy
@on_keras3(2)
def test_weighted_averages():
    weighted.check(hvd, keras.ops.cast)


@pytest.mark.heavy
@on_keras3(2)
def test_fit_with_short_batches_equals_one_process():
    """Batches of 4 and 1 samples on rank 0, 4 and 3 on rank 1, with sample weights."""
    x, y = models.data(12)
    importance = np.linspace(0.5, 2, 12)
    parts = [slice(0, 5), slice(5, 12)]

    def make():
        return keras.optimizers.SGD(0.1, momentum=0.9)

    for options in ({"weight": "batch"}, {"weight": "batch", "compression": hvd.Compression.fp16}):
        tolerance = {} if "compression" not in options else {"rtol": 1e-2, "atol": 1e-2}
        distributed, alone = models.model(), models.model()
        distributed.compile(optimizer=hvd.DistributedOptimizer(make(), **options), loss="mse")
        alone.compile(optimizer=make(), loss="mse")
        own = parts[hvd.rank()]
        data = {"x": x[own], "y": y[own], "sample_weight": importance[own]}
        distributed.fit(**data, batch_size=4, shuffle=False, verbose=0, epochs=2)
        for _ in range(2):
            for begin, ends in ((0, (4, 4)), (4, (5, 7))):
                rows = [p.start + i for p, end in zip(parts, ends, strict=True) for i in range(begin, end)]
                alone.train_on_batch(x[rows], y[rows], importance[rows])
        for one, other in zip(distributed.get_weights(), alone.get_weights(), strict=True):
            np.testing.assert_allclose(one, other, **(tolerance or {"rtol": 1e-5, "atol": 1e-6}))
        models.assert_same_everywhere(distributed)
    for wrong, message in (
        ({"weight": "rows"}, 'weight must be a number, a tensor, a function or "batch"'),
        ({"weight": 1, "op": hvd.Sum}, "weight requires op=Average"),
    ):
        with pytest.raises(ValueError, match=message):
            hvd.DistributedOptimizer(make(), **wrong)
