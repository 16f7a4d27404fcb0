"""Keras 2: new and legacy optimizers of tf_keras reduce gradients exactly once in every kind of training."""

import numpy as np
import pytest

from tests.keras import legacy_models as models
from tests.keras.legacy_models import hvd, kind, tf
from tests.ranks import on_keras2


@pytest.mark.smoke
@on_keras2(2, timeout=180)
def test_two_workers_train_like_one():
    x, y = models.data(8)
    dense = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", input_shape=(5,))
    distributed = tf.keras.Sequential([dense])
    distributed.compile(optimizer=hvd.DistributedOptimizer(kind(False).SGD(0.1)), loss="mse")
    distributed.fit(models.shard(x, 4), models.shard(y, 4), batch_size=4, shuffle=False, verbose=0)
    np.testing.assert_allclose(distributed.get_weights()[0], 0.2 * (x * y).mean(0)[:, None], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("legacy", [False, True])
@on_keras2(2, timeout=180)
def test_training(legacy):
    size, batch = hvd.size(), 3
    x, y = models.data(batch * size * 4)
    parts = models.shard(x, batch), models.shard(y, batch)

    def alone(optimizer, factor=1):
        plain = models.model()
        plain.compile(optimizer=optimizer, loss="mse")
        plain.fit(x, y, batch_size=batch * size * factor, epochs=2, shuffle=False, verbose=0)
        return plain

    # Adam, with clipping after the reduction.
    def adam():
        return kind(legacy).Adam(0.03, epsilon=1e-3, clipnorm=0.5)

    distributed = models.model()
    distributed.compile(optimizer=hvd.DistributedOptimizer(adam()), loss="mse")
    distributed.fit(*parts, batch_size=batch, epochs=2, shuffle=False, verbose=0)
    models.assert_equal(distributed, alone(adam()))

    # With Sum, a gradient that is reduced twice or never changes the result.
    summed = alone(kind(legacy).SGD(0.02 * size))
    for options in ({}, {"run_eagerly": True}, {"steps_per_execution": 2}):
        distributed = models.model()
        optimizer = hvd.DistributedOptimizer(kind(legacy).SGD(0.02), op=hvd.Sum)
        assert isinstance(optimizer, kind(legacy).SGD)
        assert type(optimizer).__name__ == "SGD"
        assert optimizer._HAS_AGGREGATE_GRAD
        distributed.compile(optimizer=optimizer, loss="mse", **options)
        distributed.fit(*parts, batch_size=batch, epochs=2, shuffle=False, verbose=0)
        models.assert_equal(distributed, summed)

    # Several backward passes.
    if not legacy:
        twice = alone(kind(legacy).SGD(0.02), factor=2)
        distributed = models.model()
        optimizer = hvd.DistributedOptimizer(
            kind(legacy).SGD(0.02), backward_passes_per_step=2, average_aggregated_gradients=True
        )
        distributed.compile(optimizer=optimizer, loss="mse")
        distributed.fit(*parts, batch_size=batch, epochs=2, shuffle=False, verbose=0)
        models.assert_equal(distributed, twice)
        assert int(optimizer._agg_helper.counter) == 0


@pytest.mark.parametrize("legacy", [False, True])
@on_keras2(2)
def test_loops_of_the_user(legacy):
    rank, size = hvd.rank(), hvd.size()
    total = sum(range(1, size + 1))

    def start():
        variables = [tf.Variable([1.0, 2.0]), tf.Variable(tf.zeros((2, 2)))]
        return variables, hvd.DistributedOptimizer(kind(legacy).SGD(1.0), op=hvd.Sum)

    def loss_of(variables):
        return lambda: (rank + 1.0) * tf.add_n([tf.reduce_sum(v) for v in variables])

    def check(variables, times):
        np.testing.assert_allclose(variables[0].numpy(), [1.0 - times * total, 2.0 - times * total])
        np.testing.assert_allclose(variables[1].numpy(), np.full((2, 2), -times * total * 1.0))

    variables, optimizer = start()
    optimizer.minimize(loss_of(variables), variables)
    check(variables, 1)
    ones = [tf.fill(v.shape, rank + 1.0) for v in variables]
    optimizer.apply_gradients(zip(ones, variables, strict=True))
    check(variables, 2)
    # Gradients that the program requests are reduced, and not reduced again when applied.
    pairs = optimizer._compute_gradients(loss_of(variables), lambda: variables, grad_loss=tf.constant(2.0))
    np.testing.assert_allclose(pairs[0][0].numpy(), [2 * total, 2 * total])
    with pytest.raises(ValueError, match="tape"):
        optimizer._compute_gradients(loss_of(variables)(), variables)
    compute = optimizer._compute_gradients if legacy else optimizer.compute_gradients
    with tf.GradientTape() as tape:
        loss = loss_of(variables)()
    pairs = compute(loss, variables, tape=tape)
    np.testing.assert_allclose(pairs[0][0].numpy(), [total, total])
    optimizer.apply_gradients([(grad * 1.0, variable) for grad, variable in pairs])
    check(variables, 3)
    optimizer.apply_gradients(zip(ones, variables, strict=True))
    check(variables, 4)
    aggregate = optimizer._aggregate_gradients if legacy else optimizer.aggregate_gradients
    np.testing.assert_allclose(aggregate(list(zip(ones, variables, strict=True)))[0][0].numpy(), [total, total])

    @tf.function
    def step():
        optimizer.apply_gradients(zip(ones, variables, strict=True))

    step()
    step()
    check(variables, 6)

    # A sparse gradient, and a variable that stays local.
    table, own = tf.Variable(tf.zeros((4, 2))), tf.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(kind(legacy).SGD(1.0), op=hvd.Sum)
    optimizer.register_local_var(own)
    slices = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([rank]), tf.constant([4, 2]))
    optimizer.apply_gradients([(slices, table), (tf.constant([size * (rank + 1.0)]), own)])
    np.testing.assert_allclose(table.numpy()[: size + 1], [[-1.0, -1.0]] * size + [[0.0, 0.0]])
    np.testing.assert_allclose(own.numpy(), [-(rank + 1.0)])


@pytest.mark.parametrize("legacy", [False, True])
@on_keras2(2)
def test_exposed_gradients(legacy):
    """Returned gradients are not reduced again, and other gradients are not mistaken for them."""
    rank, size = hvd.rank(), hvd.size()
    total = sum(range(1, size + 1))
    v, w = tf.Variable([0.0, 0.0]), tf.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(kind(legacy).SGD(1.0), op=hvd.Sum)
    if not legacy:
        optimizer.build([v, w])
    ask = optimizer._compute_gradients if legacy else optimizer.compute_gradients

    def compute(factor=1.0, variables=(v,)):
        with tf.GradientTape() as tape:
            loss = factor * (rank + 1.0) * tf.add_n([tf.reduce_sum(x) for x in variables])
        return ask(loss, list(variables), tape=tape)

    def delta(update):
        before = v.numpy()
        update()
        change = before - v.numpy()
        assert change[0] == change[1]
        return change[0]

    def apply(pairs):
        optimizer.apply_gradients(pairs)

    def own():
        with tf.GradientTape() as tape:
            loss = (rank + 1.0) * tf.reduce_sum(v)
        return [(tape.gradient(loss, v), v)]

    def logged_as():
        logged = compute(5.0)
        apply(own())
        return logged

    def two_at_once(change):
        first, second = compute(), compute(10.0)
        apply([(change(grad), x) for grad, x in first])
        apply([(change(grad), x) for grad, x in second])

    def with_another(w_grad):
        [(grad, _)] = compute()
        apply([(tf.clip_by_value(grad, -1e3, 1e3), v), (w_grad, w)])

    def several_in_one_update():
        apply([(tf.add_n([compute()[0][0] for _ in range(3)]), v)])

    for traced in (False, True):
        wrap = tf.function if traced else lambda f: f
        assert delta(wrap(logged_as)) == total
        assert delta(wrap(lambda: apply(own()))) == total
        for change in (lambda grad: grad, lambda grad: grad * 1.0, lambda grad: tf.clip_by_norm(grad, 1e3)):
            np.testing.assert_allclose(delta(wrap(lambda change=change: two_at_once(change))), 11 * total, rtol=1e-6)
        assert delta(wrap(several_in_one_update)) == 3 * total
        w.assign([0.0])
        assert delta(wrap(lambda: with_another(tf.constant([rank + 1.0])))) == total
        np.testing.assert_allclose(w.numpy(), [-total])
        assert delta(wrap(lambda: apply(compute()))) == total
    # Returned eagerly, applied in a function.
    pairs = compute()
    assert delta(tf.function(lambda: apply(pairs))) == total
    assert delta(tf.function(lambda: apply(own()))) == total
    # Programs that never apply returned gradients do not accumulate records of them.
    for _ in range(20):
        compute()
    assert len(optimizer._hvd.marks._eager) == 8


@pytest.mark.parametrize("legacy", [False, True])
@on_keras2(2)
def test_from_config_returns_a_plain_optimizer(legacy):
    rank = hvd.rank()
    v = tf.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(kind(legacy).SGD(1.0), op=hvd.Sum)
    for _ in range(2):
        plain = type(optimizer).from_config(optimizer.get_config())
        v.assign([0.0])
        plain.apply_gradients([(tf.constant([rank + 1.0]), v)])
        np.testing.assert_allclose(v.numpy(), [-(rank + 1.0)])
        assert plain._optimizer is plain
        assert plain._agg_helper is None
        again = hvd.DistributedOptimizer(plain, op=hvd.Sum)
        v.assign([0.0])
        again.apply_gradients([(tf.constant([rank + 1.0]), v)])
        np.testing.assert_allclose(v.numpy(), [-sum(range(1, hvd.size() + 1))])
        optimizer = again


@on_keras2(2)
def test_get_gradients_in_a_graph_with_a_session():
    rank, size = hvd.rank(), hvd.size()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=tf.constant([1.0, 2.0]), use_resource=True)
        optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.legacy.SGD(1.0), op=hvd.Sum)
        grads = optimizer.get_gradients((rank + 1.0) * tf.reduce_sum(variable), [variable])
        update = optimizer.apply_gradients(zip(grads, [variable], strict=True))
        session.run(tf.compat.v1.global_variables_initializer())
        total = sum(range(1, size + 1))
        np.testing.assert_allclose(session.run(grads)[0], [total, total])
        session.run(update)
        np.testing.assert_allclose(session.run(variable), [1.0 - total, 2.0 - total])
        np.testing.assert_allclose(hvd.allreduce(rank + 1.0, op=hvd.Sum), total)
        session.run(variable.assign([rank * 1.0, 0.0]))
        session.run(hvd.broadcast_global_variables(1))
        np.testing.assert_allclose(session.run(variable), [1.0, 0.0])
    with pytest.raises(RuntimeError, match="broadcast_global_variables"):
        hvd.broadcast_global_variables(0)


@pytest.mark.parametrize("legacy", [False, True])
@on_keras2(2)
def test_an_infinite_gradient_on_one_rank_skips_the_step_on_all(legacy):
    from horovod.common.objects import allgather_object

    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        x, y = models.data(8 * 4)
        if hvd.rank() == 1:
            x[8, 0] = np.inf
        for scaled_first in (False, True):
            distributed = models.model()
            optimizer = kind(legacy).SGD(0.01)
            if scaled_first:
                optimizer = tf.keras.mixed_precision.LossScaleOptimizer(optimizer)
            distributed.compile(optimizer=hvd.DistributedOptimizer(optimizer), loss="mse")
            distributed.fit(x, y, batch_size=8, shuffle=False, verbose=0)
            assert float(distributed.optimizer.loss_scale) == 2.0**14, "all ranks leave out the second batch"
            first, *rest = allgather_object(distributed.get_weights(), "weights")
            assert all(np.isfinite(weight).all() for weight in first)
            for other in rest:
                for a, b in zip(first, other, strict=True):
                    np.testing.assert_array_equal(a, b)
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")


@pytest.mark.parametrize("legacy", [False, True])
@on_keras2(2)
def test_saving(legacy, tmp_path):
    x, y = models.data(16)
    distributed = models.model()
    plain = kind(legacy).SGD(0.01, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(plain)
    assert optimizer.get_config() == plain.get_config()
    distributed.compile(optimizer=optimizer, loss="mse")
    distributed.fit(x, y, batch_size=8, verbose=0)
    path = f"{tmp_path}/rank{hvd.rank()}.h5"
    distributed.save(path)
    loaded = tf.keras.models.load_model(path)
    assert type(loaded.optimizer) is kind(legacy).SGD
    again = hvd.load_model(path, legacy_opts=legacy)
    assert isinstance(again.optimizer, kind(legacy).SGD)
    assert int(again.optimizer.iterations) == 2
    again.optimizer.register_local_var(again.trainable_variables[0])
    again.fit(x, y, batch_size=8, verbose=0)


@pytest.mark.parametrize("legacy", [False, True])
@on_keras2(2)
def test_compression(legacy):
    """Values are sent as float16: 1 + 2^-12 becomes 1."""
    for choice, moved in (("none", 1 + 2.0**-12), ("fp16", 1.0)):
        compression = getattr(hvd.Compression, choice)
        optimizer = hvd.DistributedOptimizer(kind(legacy).SGD(1.0), compression=compression)
        v = tf.Variable([0.0])
        optimizer.apply_gradients([(tf.constant([1 + 2.0**-12]), v)])
        np.testing.assert_array_equal(v.numpy(), np.float32([-moved]))


@pytest.mark.parametrize("legacy", [False, True])
@on_keras2(2)
def test_callbacks(legacy):
    x, y = models.data(12 + 4 * hvd.rank())
    distributed = models.model()
    distributed.compile(optimizer=hvd.DistributedOptimizer(kind(legacy).SGD(0.2, momentum=0.9)), loss="mse")
    if hvd.rank():
        distributed.set_weights([weight + 1 for weight in distributed.get_weights()])
    cbs = hvd.callbacks
    distributed.fit(
        x,
        y,
        batch_size=4,
        steps_per_epoch=3,
        epochs=3,
        verbose=0,
        callbacks=[
            cbs.BroadcastGlobalVariablesCallback(1),
            cbs.LearningRateWarmupCallback(0.2, warmup_epochs=1),
            cbs.LearningRateScheduleCallback(0.2, 0.5, start_epoch=2),
            cbs.MetricAverageCallback(),
        ],
    )
    rates = distributed.history.history["lr"]
    # Weighted by samples: 4 on the first rank and 12 on the second, whose losses differ.
    still = models.model()
    still.compile(optimizer=hvd.DistributedOptimizer(kind(legacy).SGD(0.0)), loss="mse")
    own = slice(0, 4) if hvd.rank() == 0 else slice(4, 16)
    x, y = models.data(16)
    still.fit(x[own], y[own], batch_size=12, verbose=0, callbacks=[cbs.MetricAverageCallback()])
    np.testing.assert_allclose(still.history.history["loss"], [still.evaluate(x, y, verbose=0)], rtol=1e-5)
    np.testing.assert_allclose(rates, [0.2, 0.2, 0.1], rtol=1e-6)
    from horovod.common.objects import allgather_object

    outcomes = allgather_object((distributed.get_weights(), distributed.history.history["loss"]), "outcome")
    for weights, losses in outcomes[1:]:
        assert losses == outcomes[0][1]
        for a, b in zip(weights, outcomes[0][0], strict=True):
            np.testing.assert_array_equal(a, b)
