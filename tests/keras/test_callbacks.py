"""Callbacks, in fit."""

import numpy as np
import pytest

from tests.keras.modules import hvd, keras, models
from tests.ranks import on_keras3


@on_keras3(2)
def test_broadcast_at_the_end_of_the_first_batch():
    rank, size = hvd.rank(), hvd.size()
    x, y = models.data(8 * size)
    parts = models.shard(x, 4), models.shard(y, 4)
    model = models.model(seed=rank)  # every rank starts with different weights
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    for variable in optimizer.variables[2:]:
        variable.assign(keras.ops.ones(variable.shape) * (rank + 1))
    own = model.layers[0].bias
    own.assign(keras.ops.ones(7) * rank)
    model.compile(optimizer=hvd.DistributedOptimizer(optimizer), loss="mse")
    cbs = hvd.callbacks
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if hasattr(self.model, "jax_state_sync"):
                self.model.jax_state_sync()
            seen.append([np.array(w) for w in self.model.get_weights()])

    callback = cbs.BroadcastGlobalVariablesCallback(1, local_variables=[own])
    model.fit(*parts, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=[callback, Watch()])
    from horovod.common.objects import allgather_object

    state = [keras.ops.convert_to_numpy(v) for v in optimizer.variables]
    results = allgather_object((seen, state), "seen")
    names = [w.path.split("/")[-1] for w in model.weights]
    for other, other_state in results:
        for batch in range(len(seen)):
            for i, name in enumerate(names):
                equal = (other[batch][i] == results[1][0][batch][i]).all()
                assert equal == (i != 1 or other is results[1][0]), (batch, name)
        for a, b in zip(other_state, state, strict=True):
            np.testing.assert_array_equal(a, b)
    # Another fit does not broadcast again: differences between ranks remain.
    model.set_weights([w * 0 + rank for w in model.get_weights()])
    seen.clear()
    model.fit(*parts, batch_size=4, shuffle=False, verbose=0, callbacks=[callback, Watch()])
    for rank_of, batches in enumerate(allgather_object(seen, "seen again")):
        for weights in batches:
            assert all(np.abs(weight - rank_of).max() < 0.3 for weight in weights)


@pytest.mark.heavy
@on_keras3(2, timeout=180)
def test_learning_rates():
    size = hvd.size()
    x, y = models.data(12)
    cbs = hvd.callbacks

    class Rates(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.rates = []

        def on_train_batch_end(self, batch, logs=None):
            if hasattr(self.model, "jax_state_sync"):
                self.model.jax_state_sync()
            self.rates.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))

    def fit(*callbacks, epochs=1, optimizer=None, **options):
        model = models.model()
        optimizer = hvd.DistributedOptimizer(optimizer or keras.optimizers.SGD(0.8))
        model.compile(optimizer=optimizer, loss="mse", **(models.untraced() if epochs < 3 else {}))
        seen = Rates()
        history = model.fit(
            x, y, batch_size=3, epochs=epochs, shuffle=False, verbose=0, callbacks=[*callbacks, seen], **options
        )
        return seen.rates, history.history, model

    # From 0.8 / size to 0.8 in two epochs of four batches.
    warmup = cbs.LearningRateWarmupCallback(0.8, warmup_epochs=2, verbose=1)
    seen, history, _ = fit(warmup, epochs=3)
    expected = [0.8 / size * (1 + (size - 1) * min(8, i + 1) / 8) for i in range(12)]
    np.testing.assert_allclose(seen, expected, rtol=1e-5)
    np.testing.assert_allclose(history["lr"], [seen[3], seen[7], seen[11]], rtol=1e-6)

    steps = cbs.LearningRateScheduleCallback(0.8, multiplier=lambda epoch: 0.5**epoch, start_epoch=1, end_epoch=3)
    seen, history, _ = fit(steps, epochs=4, steps_per_epoch=1)
    np.testing.assert_allclose(seen, [0.8, 0.4, 0.2, 0.2], rtol=1e-6)
    np.testing.assert_allclose(history["lr"], [0.8, 0.4, 0.2, 0.2], rtol=1e-6)

    smooth = cbs.LearningRateScheduleCallback(0.8, lambda epoch: 1 - epoch / 2, staircase=False)
    seen, _, _ = fit(smooth, epochs=2)
    np.testing.assert_allclose(seen, [0.8 * (1 - i / 8) for i in range(8)], rtol=1e-5)

    constant = cbs.LearningRateScheduleCallback(0.8, 0.25, end_epoch=1)
    seen, _, _ = fit(constant, epochs=2)
    np.testing.assert_allclose(seen, [0.2] * 8, rtol=1e-6)

    # Momentum correction: velocities contain the learning rate, so they change with it.
    def momentum(corrected):
        steps = cbs.LearningRateScheduleCallback(
            0.8, lambda epoch: 0.25**epoch, momentum_correction=corrected, start_epoch=1
        )
        _, _, model = fit(steps, epochs=2, optimizer=keras.optimizers.SGD(0.8, momentum=0.9), steps_per_epoch=2)
        return models.weights(model)

    def by_hand(corrected):
        model = models.model()
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.8, momentum=0.9))
        model.compile(optimizer=optimizer, loss="mse", **models.untraced())
        model.fit(x[:6], y[:6], batch_size=3, shuffle=False, verbose=0)
        model.optimizer.learning_rate = 0.2
        if corrected:
            for velocity in model.optimizer.momentums:
                velocity.assign(velocity * 0.25)
        model.fit(x[6:], y[6:], batch_size=3, shuffle=False, verbose=0)
        return models.weights(model)

    if hasattr(keras.optimizers, "Muon"):  # its momentum does not contain the rate
        constant = cbs.LearningRateScheduleCallback(0.8, 0.25)
        _, _, model = fit(constant, optimizer=keras.optimizers.Muon(0.8, exclude_layers=["dense"]))
        before = [np.array(keras.ops.convert_to_numpy(v)) for v in model.optimizer.momentums]
        assert any(value.any() for value in before)
        model.optimizer.learning_rate = 0.8
        constant.set_model(model)
        constant.on_epoch_begin(0)
        for a, b in zip(before, model.optimizer.momentums, strict=True):
            np.testing.assert_array_equal(a, keras.ops.convert_to_numpy(b))
    reference = {corrected: by_hand(corrected) for corrected in (True, False)}
    for corrected, weights in reference.items():
        for a, b in zip(momentum(corrected), weights, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert any((a != b).any() for a, b in zip(*reference.values(), strict=True))

    # A learning rate that cannot be set, and invalid arguments.
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    with pytest.raises(ValueError, match=r"learning_rate must be a number, .*, got a ExponentialDecay"):
        fit(cbs.LearningRateWarmupCallback(0.8, 1), optimizer=keras.optimizers.SGD(schedule))
    with pytest.raises(ValueError, match="initial_lr must be a number, got 'a'"):
        cbs.LearningRateScheduleCallback("a", 1.0)
    with pytest.raises(ValueError, match=r"multiplier must be .*, got None"):
        cbs.LearningRateScheduleCallback(0.1, None)
    with pytest.raises(ValueError, match="warmup_epochs must be a number of at least 0, got -1"):
        cbs.LearningRateWarmupCallback(0.1, warmup_epochs=-1)


@on_keras3(1)
def test_best_model(tmp_path):
    from pathlib import Path

    x, y = models.data(16)
    callback = hvd.callbacks.BestModelCheckpoint(monitor="loss", mode="min")
    model = models.model()
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), loss="mse")
    with pytest.raises(ValueError, match="filepath"):
        model.fit(x, y, verbose=0, callbacks=[callback])
    callback = hvd.callbacks.BestModelCheckpoint(monitor="score", mode="max")
    callback.filepath = Path(tmp_path) / f"best{hvd.rank()}.keras"

    class Score(keras.callbacks.Callback):
        weights = None

        def on_epoch_end(self, epoch, logs=None):
            logs["score"] = [1.0, 3.0, 2.0][epoch]
            if epoch == 1:
                self.weights = models.weights(self.model)

    score = Score()
    model.fit(x, y, epochs=3, verbose=0, callbacks=[score, callback])
    saved = keras.models.load_model(callback.filepath)
    for a, b in zip(models.weights(saved), score.weights, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.heavy
@on_keras3(2)
def test_load_model(tmp_path):
    size, rank = hvd.size(), hvd.rank()
    x, y = models.data(4 * size * 4)
    parts = models.shard(x, 4), models.shard(y, 4)

    class CustomSGD(keras.optimizers.SGD):
        pass

    for kind, custom in ((keras.optimizers.SGD, None), (CustomSGD, [CustomSGD])):
        model = models.model()
        model.compile(optimizer=hvd.DistributedOptimizer(kind(0.05, momentum=0.9)), loss="mse", **models.untraced())
        model.fit(*parts, batch_size=4, shuffle=False, verbose=0)
        path = f"{tmp_path}/{kind.__name__}{rank}.keras"
        model.save(path)
        # A plain process gets a plain optimizer with the state.
        with keras.saving.custom_object_scope({"CustomSGD": CustomSGD}):
            plain = keras.models.load_model(path)
        assert "horovod" not in "".join(c.__module__ for c in type(plain.optimizer).__mro__)
        assert type(plain.optimizer).__name__ == kind.__name__
        loaded = hvd.load_model(path, custom_optimizers=custom)
        assert isinstance(loaded.optimizer, kind)
        for a, b in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
            np.testing.assert_array_equal(keras.ops.convert_to_numpy(a), keras.ops.convert_to_numpy(b))
    # It continues together with the others.
    for one in (model, loaded):
        one.fit(*parts, batch_size=4, shuffle=False, verbose=0)
    models.assert_equal(loaded, model)
    models.assert_same_everywhere(loaded)
    if keras.config.backend() == "tensorflow":
        # A file written by a plain process on a host with a GPU, where "auto" means XLA.
        from unittest import mock

        import tensorflow as tf

        plain = models.model()
        with mock.patch.object(tf.config, "list_physical_devices", return_value=[mock.Mock(device_type="GPU")]):
            plain.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
            assert plain.jit_compile is True
            plain.save(f"{tmp_path}/plain{rank}.keras")
            loaded = hvd.load_model(f"{tmp_path}/plain{rank}.keras")
        assert loaded.jit_compile is False
    with pytest.raises(ValueError, match="legacy_opts"):
        hvd.load_model(path, legacy_opts=True)
    with pytest.raises(ValueError, match="custom_optimizers"):
        hvd.load_model(path, custom_optimizers=["sgd"])


def losing_a_peer(folder):
    import os
    import signal

    rank = hvd.rank()
    x, y = models.data(32)
    model = models.model()
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), loss="mse")

    class Die(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if rank == 1 and batch == 2:
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        model.fit(x, y, batch_size=4, epochs=1000, verbose=0, callbacks=[Die()])
    except Exception as error:
        return keras.config.backend(), type(error).__name__, str(error)
    return None


ERRORS = {"tensorflow": "UnknownError", "torch": "HorovodInternalError", "jax": "HorovodInternalError"}


def test_a_killed_rank_ends_fit_on_the_others(keras3, tmp_path):
    from tests.pool import WorkerDied

    first, second = keras3(2).run(losing_a_peer, str(tmp_path), errors=True)
    assert isinstance(second, WorkerDied)
    assert first is not None, "fit went on alone"
    backend, kind, text = first
    assert kind == ERRORS[backend], first
    assert "rank 1" in text
