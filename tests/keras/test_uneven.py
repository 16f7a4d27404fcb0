"""Ranks with different numbers of batches in fit."""

import numpy as np
import pytest

from tests.keras.modules import hvd, keras, models


def uneven(kind):
    """Return the warnings of rank 0 with 5 batches and rank 1 with 4."""
    import contextlib
    import io

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    many = 5 - hvd.rank()
    x, y = np.ones((2 * many, 3), "float32"), np.ones((2 * many, 1), "float32")

    def endless():
        while True:
            yield x[:2], y[:2]

    def once():
        for _ in range(many):
            yield x[:2], y[:2]

    options = {"verbose": 0, "callbacks": callbacks}
    model.fit(endless(), steps_per_epoch=3, epochs=2, **options)  # equal: no warning
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed):
        try:
            if kind == "known":
                model.fit(x, y, batch_size=2, **options)
            else:
                model.fit(once(), **options)
        except Exception as error:
            return type(error).__name__, str(error), printed.getvalue()
    raise AssertionError("no error")


@pytest.mark.heavy
def test_ranks_with_more_batches_than_others_are_named(keras3):
    job = keras3(2)
    for kind, text, _ in job.run(uneven, "known"):
        assert kind == "ValueError"
        assert "fit: rank 0 has more batches in an epoch than rank 1: 5 and 4; give all ranks the same number" in text
    # A generator's length is known when it ends.
    job = keras3(2, HOROVOD_STALL_CHECK_TIME_SECONDS="1", HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="4")
    message = "rank 1 has ended epoch 1 after 4 batches and waits for ranks that have more of them; give all"
    _, (kind, text, printed) = job.run(uneven, "unknown", fresh=True)
    assert kind == "HorovodInternalError"
    assert f"fit: {message}" in text
    assert f"WARNING: fit: {message}" in printed


def padded(kind, samples, accumulation=None):
    """Train with ``samples[rank]`` samples in batches of 4; return differences from one process, and losses."""
    x, y = models.data(sum(samples))
    begins = [sum(samples[:rank]) for rank in range(len(samples))]
    local = slice(begins[hvd.rank()], begins[hvd.rank()] + samples[hvd.rank()])

    class Data(keras.utils.PyDataset):
        num_batches = -(-samples[hvd.rank()] // 4)

        def __getitem__(self, index):
            return x[local][4 * index : 4 * index + 4], y[local][4 * index : 4 * index + 4]

    def make():
        return keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=accumulation)

    net, alone = (models.model(kernel_regularizer="l2") for _ in range(2))
    net.compile(hvd.DistributedOptimizer(make()), loss="mse")
    alone.compile(make(), loss="mse")
    net.fit(np.ones((4, 5)), np.ones((4, 1)), verbose=0)  # compiles a step without weights
    net.set_weights(alone.get_weights())
    for variable in net.optimizer.variables:
        if "learning_rate" not in variable.path:
            variable.assign(variable * 0)
    data = {"arrays": (x[local], y[local]), "PyDataset": Data()}.get(kind)
    if kind == "tf.data":
        import tensorflow as tf

        data = tf.data.Dataset.from_tensor_slices((x[local], y[local])).batch(4)
    data = hvd.sync(data, **({"batch_size": 4, "shuffle": False} if kind == "arrays" else {}))
    history = net.fit(data, verbose=0, shuffle=False, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    losses = []
    for step in range(max(-(-n // 4) for n in samples)):
        ends = [begin + min(4 * step + 4, n) for begin, n in zip(begins, samples, strict=True)]
        rows = [list(range(begin + 4 * step, end)) for begin, end in zip(begins, ends, strict=True)]
        own, union = rows[hvd.rank()], [row for part in rows for row in part]
        if own:
            losses.append((alone.evaluate(x[own], y[own], verbose=0), len(own)))
        alone.train_on_batch(x[union], y[union])
    mean = sum(loss * n for loss, n in losses) / max(1, sum(n for _, n in losses))
    pairs = list(zip(net.get_weights(), alone.get_weights(), strict=True))
    if accumulation is not None:  # nothing but copies: no momentum, no update
        net.fit(np.ones((4, 5)), np.ones((4, 1)), sample_weight=np.full(4, -0.0), verbose=0)
        assert all((a == b).all() for (a, _), b in zip(pairs, net.get_weights(), strict=True))
    return max(float(np.abs(a - b).max()) for a, b in pairs), history.history["loss"][0] - mean


def weighted_fit(**options):
    """Train on sequences with masks in uneven batches; return the difference from one process."""
    x = np.random.default_rng(0).integers(0, 7, (12, 5))
    x[:3] = 0  # masked
    y, parts = x % 3, [slice(0, 5), slice(5, 12)]

    def compiled(optimizer):
        keras.utils.set_random_seed(3)
        layers = [keras.layers.Embedding(7, 4, mask_zero=True), keras.layers.Dense(3)]
        model = keras.Sequential([keras.layers.Input((5,)), *layers])
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    steps = options.get("backward_passes_per_step")
    distributed = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), weight="batch", **options)
    net, alone = compiled(distributed), compiled(keras.optimizers.SGD(0.5, gradient_accumulation_steps=steps))
    net.fit(x[parts[hvd.rank()]], y[parts[hvd.rank()]], batch_size=4, shuffle=False, verbose=0)
    for rows in ([*range(4), *range(5, 9)], [4, 9, 10, 11]):
        alone.train_on_batch(x[rows], y[rows])
    pairs = zip(net.get_weights(), alone.get_weights(), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def stopped_fit():
    """Return the number of batches, of unused batches, and warnings."""
    import warnings

    x, y = models.data(4 - hvd.rank())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = hvd.sync((x, y), policy="stop", batch_size=1)
        model = models.model()
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
        model.fit(x, y, batch_size=4, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    with pytest.raises(ValueError, match=r"hvd.sync on rank 1: data must be a PyDataset"):
        hvd.sync((x, y) if hvd.rank() == 0 else None)
    return len(data), data.remaining, " ".join(str(one.message) for one in caught)


@pytest.mark.heavy
def test_masks_several_passes_and_warnings(stateful):
    job = stateful(2)
    accumulated = {"backward_passes_per_step": 2, "average_aggregated_gradients": True, "sparse_as_dense": True}
    for options in ({}, accumulated):
        assert max(job.run(weighted_fit, **options)) < 2e-6
    (*first, warned), (*second, none) = job.run(stopped_fit)
    assert (first, second) == ([3, 1], [3, 0])
    for text in (
        "as many as rank 1 has; 1 batches of rank 0 are unused",
        "0 has read 4 samples in 1 batches, but rank 1 3",
    ):
        assert text in warned
        assert text not in none


@pytest.mark.heavy
def test_padded_fit_equals_one_process(keras3):
    job = keras3(2)
    cases = [("arrays", [9, 3]), ("PyDataset", [3, 9]), ("tf.data", [9, 0]), ("arrays", [0, 9])]
    for case in [*cases, ("PyDataset", [9, 3], 3)]:
        for weights, loss in job.run(padded, *case):
            assert weights < 2e-6, case
            assert abs(loss) < 2e-6, case
