"""Keras on JAX under the distributed optimizer: fit and its relatives as they are."""

import os
import signal

import numpy as np
import pytest

from horovod.common import exceptions as hvd_errors

pytest.importorskip("jax")
RANKS, BATCH, STEPS = 2, 6, 6


@pytest.fixture
def jax_pool(keras_pool):
    return keras_pool("jax")


def data(seed):
    """Of ``STEPS`` joined batches."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(STEPS * RANKS * BATCH, 5)).astype("float32")
    return x, (x @ random.normal(size=(5, 3))).astype("float32")


def shard(array, rank):
    """A rank's part of every joined batch."""
    return np.concatenate([part[rank * BATCH : (rank + 1) * BATCH] for part in np.split(array, STEPS)])


def model(seed, width=7):
    import keras

    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [keras.layers.Input((5,)), keras.layers.Dense(width, activation="tanh"), keras.layers.Dense(3, dtype="float32")]
    )


def optimizer(name, **options):
    import keras

    return getattr(keras.optimizers, name)(0.05, **options)


CASES = {
    "fit": ("Adam", {}, {}),
    "momentum": ("SGD", {"momentum": 0.9, "nesterov": True}, {}),
    "clipping": ("AdamW", {"clipnorm": 0.1}, {}),
    "steps_per_execution": ("Adam", {}, {"steps_per_execution": 3}),
    "jit_compile": ("RMSprop", {}, {"jit_compile": True}),
    "no jit": ("SGD", {}, {"jit_compile": False}),
    "run_eagerly": ("SGD", {}, {"run_eagerly": True}),
    "accumulation": ("SGD", {"gradient_accumulation_steps": 2}, {}),
    "averages": ("SGD", {"use_ema": True, "ema_overwrite_frequency": 2}, {}),
}


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.heavy] * (case == "no jit")) for case in CASES])
def test_ranks_on_shards_equal_one_process_on_the_joined_batch(jax_pool, case):
    name, options, compiling = CASES[case]
    seed = sorted(CASES).index(case)

    def work():
        import horovod.keras as hvd

        x, y = data(seed)

        def trained(opt, x, y, batch):
            made = model(seed)
            made.compile(optimizer=opt, loss="mse", **compiling)
            made.fit(x, y, batch_size=batch, epochs=2, shuffle=False, verbose=0)
            return made.get_weights()

        rank = hvd.rank()
        ours = trained(hvd.DistributedOptimizer(optimizer(name, **options)), shard(x, rank), shard(y, rank), BATCH)
        return ours, trained(optimizer(name, **options), x, y, RANKS * BATCH) if rank == 0 else None

    (first, single), (second, _) = jax_pool(RANKS).run(work, timeout=240)
    before = jax_pool(RANKS).run(lambda: model(seed).get_weights())[0]
    for a, b, joined, start in zip(first, second, single, before, strict=True):
        assert a.tobytes() == b.tobytes()
        np.testing.assert_allclose(a, joined, rtol=2e-4, atol=2e-5)
        assert np.abs(a - start).max() > 1e-3


def test_a_loop_of_the_user_and_train_on_batch(jax_pool):
    def work():
        import horovod.keras as hvd

        x, y = data(40)
        rank = hvd.rank()

        def trained(opt, x, y, batch):
            made = model(40)
            made.compile(optimizer=opt, loss="mse")
            for i in range(STEPS):
                made.train_on_batch(x[i * batch : (i + 1) * batch], y[i * batch : (i + 1) * batch])
            return made.get_weights()

        def applied(opt):
            """Eager gradients through apply()."""
            import jax

            made = model(41)
            opt.build(made.trainable_variables)
            for _ in range(2):
                values = [v.value for v in made.trainable_variables]
                opt.apply([jax.numpy.ones_like(v) * (hvd.rank() + 1) for v in values], made.trainable_variables)
            return float(made.get_weights()[1][0])

        ours = trained(hvd.DistributedOptimizer(optimizer("Adam")), shard(x, rank), shard(y, rank), BATCH)
        single = trained(optimizer("Adam"), x, y, RANKS * BATCH) if rank == 0 else None
        return ours, single, applied(hvd.DistributedOptimizer(optimizer("SGD")))

    (first, single, bias), (second, _, other) = jax_pool(RANKS).run(work, timeout=240)
    assert bias == other == pytest.approx(-2 * 0.05 * 1.5)  # biases start at 0
    for a, b, joined in zip(first, second, single, strict=True):
        assert a.tobytes() == b.tobytes()
        np.testing.assert_allclose(a, joined, rtol=2e-4, atol=2e-5)


def test_an_infinite_gradient_on_one_rank_skips_the_step_on_all(jax_pool):
    def work():
        import keras

        import horovod.keras as hvd

        x, y = data(7)
        rank = hvd.rank()
        keras.config.set_dtype_policy("mixed_float16")
        try:
            made = model(7)
            made.compile(optimizer=hvd.DistributedOptimizer(optimizer("SGD")), loss="mse")
            scaling = made.optimizer

            def step(bad):
                # The largest float16, squared: infinite with any scale.
                batch = np.full_like(x[:BATCH], 6e4) if bad and rank == 1 else x[:BATCH]
                made.train_on_batch(batch, y[:BATCH] * (6e4 if bad and rank == 1 else 1))
                return made.get_weights(), float(scaling.dynamic_scale), int(scaling.inner_optimizer.iterations)

            return type(scaling).__name__, [step(False), step(True), step(False)]
        finally:
            keras.config.set_dtype_policy("float32")

    results = jax_pool(RANKS).run(work, timeout=240)
    for kind, steps in results:
        assert kind == "LossScaleOptimizer"
        (good, scale, count), (skipped, halved, same), (after, _, more) = steps
        assert halved == scale / 2
        assert (same, more) == (count, count + 1)
        assert all(np.array_equal(a, b) for a, b in zip(good, skipped, strict=True))
        assert not all(np.array_equal(a, b) for a, b in zip(skipped, after, strict=True))
        assert all(np.isfinite(w).all() for w in after)
    for a, b in zip(results[0][1][2][0], results[1][1][2][0], strict=True):
        assert a.tobytes() == b.tobytes()


def test_ranks_that_start_apart_are_brought_together(jax_pool):
    def work():
        import horovod.keras as hvd

        rank = hvd.rank()
        x, y = data(3)
        made = model(seed=rank)
        made.compile(optimizer=hvd.DistributedOptimizer(optimizer("Adam")), loss="mse")
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
        history = made.fit(
            shard(x, rank), shard(y, rank), batch_size=BATCH, epochs=2, shuffle=False, verbose=0, callbacks=callbacks
        )
        return history.history["loss"], made.get_weights(), [np.asarray(v) for v in made.optimizer.variables]

    (loss, weights, slots), (other_loss, other_weights, other_slots) = jax_pool(RANKS).run(work, timeout=240)
    assert loss == other_loss
    assert len(slots) > len(weights)
    for a, b in zip(weights + slots, other_weights + other_slots, strict=True):
        assert a.tobytes() == b.tobytes()


def test_models_that_differ_are_an_error_that_names_the_tensor_and_training_goes_on(jax_pool):
    def work():
        import horovod.keras as hvd

        rank = hvd.rank()
        x, y = data(5)

        def fit(width):
            made = model(5, width)
            made.compile(optimizer=hvd.DistributedOptimizer(optimizer("SGD"), name="Step"), loss="mse")
            made.fit(shard(x, rank), shard(y, rank), batch_size=BATCH, shuffle=False, verbose=0)
            return made.get_weights()

        with pytest.raises(hvd_errors.HorovodInternalError, match=r"(?s)Step\.0.*\[5, [74]\].*\[5, [74]\]") as caught:
            fit(width=7 if rank == 0 else 4)
        return str(caught.value), fit(width=7)

    (text, first), (_, second) = jax_pool(RANKS).run(work, timeout=240)
    assert "rank 0" in text
    assert "rank 1" in text
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))


def test_a_killed_rank_ends_fit_with_an_error_that_names_it(jax_pool):
    def work():
        import keras

        import horovod.keras as hvd

        x, y = data(6)

        class Leave(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if hvd.rank() == 1 and batch == 2:
                    os.kill(os.getpid(), signal.SIGKILL)

        made = model(6)
        made.compile(optimizer=hvd.DistributedOptimizer(optimizer("SGD")), loss="mse")
        with pytest.raises(hvd_errors.HorovodInternalError, match="rank 1"):
            made.fit(x, y, batch_size=2, epochs=50, verbose=0, callbacks=[Leave()])
        return "told"

    survivor, victim = jax_pool(RANKS).run(work, errors=True, timeout=120)
    assert survivor == "told"
    assert "SIGKILL" in str(victim)
