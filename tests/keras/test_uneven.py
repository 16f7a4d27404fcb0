"""Ranks with different numbers of batches in fit."""

import numpy as np
import pytest

from tests.keras.modules import hvd, keras


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
    told = "rank 1 has ended epoch 1 after 4 batches and waits for ranks that have more of them; give all"
    _, (kind, text, printed) = job.run(uneven, "unknown", fresh=True)
    assert kind == "HorovodInternalError"
    assert f"fit: {told}" in text
    assert f"WARNING: fit: {told}" in printed
