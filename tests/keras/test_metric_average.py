"""MetricAverageCallback, in fit."""

import numpy as np
import pytest

from tests.keras.modules import hvd, keras, models
from tests.ranks import on_keras3


@pytest.mark.heavy
@on_keras3(2, pytest.param(3, marks=pytest.mark.heavy))
def test_metrics_are_averages_over_all_samples():
    rank, size = hvd.rank(), hvd.size()
    # Ranks have 4, 8, ... samples for training and 6, 3, ... for validation.
    x, y = models.data(100)
    begin = [0, 4, 12]
    mine = slice(begin[rank], begin[rank] + 4 * (rank + 1))
    tests = [slice(40, 46), slice(46, 49), slice(49, 51)]
    model = models.model()
    # A learning rate of 0: the ranks' losses must average to the model's loss on all samples.
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), loss="mse", metrics=["mae"])
    data = keras.utils.PyDataset

    class OneBatch(data):
        """A data set of one batch: ranks take equally many steps, of different sizes."""

        def __len__(self):
            return 1

        def __getitem__(self, index):
            return x[mine], y[mine]

    history = model.fit(
        OneBatch(),
        epochs=2,
        verbose=0,
        validation_data=(x[tests[rank]], y[tests[rank]]),
        validation_batch_size=2,
        callbacks=[hvd.callbacks.MetricAverageCallback()],
    ).history
    everything = np.concatenate([x[: begin[size - 1] + 4 * size]]), y[: begin[size - 1] + 4 * size]
    loss, mae = model.evaluate(*everything, verbose=0)
    held = slice(40, tests[size - 1].stop)
    val_loss, val_mae = model.evaluate(x[held], y[held], verbose=0)
    for key, value in (("loss", loss), ("mae", mae), ("val_loss", val_loss), ("val_mae", val_mae)):
        np.testing.assert_allclose(history[key], [value] * 2, rtol=1e-5, err_msg=key)
    from unittest import mock

    from horovod._keras import metric_average
    from horovod.common.objects import allgather_object

    first, *others = allgather_object(history, "history")
    assert all(other == first for other in others)

    # Without validation; and with a metric that only one rank has.
    class Own(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["rank"] = float(self.rank)
            if self.rank == 1:
                logs["alone"] = 5.0

    own = Own()
    own.rank = rank
    average = hvd.callbacks.MetricAverageCallback()
    with mock.patch.object(metric_average, "allgather_object", wraps=allgather_object) as gather:
        history = model.fit(OneBatch(), verbose=0, callbacks=[own, average]).history
    # Two frameworks in one process have separate operations.
    expected = {"tensorflow": "tensorflow", "torch": "torch", "jax": "keras"}[keras.config.backend()]
    assert gather.call_args.kwargs["face"].name == expected
    np.testing.assert_allclose(history["loss"], [loss], rtol=1e-5)
    samples = [4 * (r + 1) for r in range(size)]
    np.testing.assert_allclose(history["rank"], [np.average(range(size), weights=samples)], rtol=1e-6)
    assert history.get("alone") == ([5.0] if rank == 1 else None)


@pytest.mark.heavy
@on_keras3(2)
def test_weighted_metrics_are_those_of_one_process():
    """Sample weights, validation data of different sizes, and the values that later callbacks see."""

    class Largest(keras.metrics.Metric):
        """A user-defined metric whose state must not be summed."""

        def __init__(self, name="largest"):
            super().__init__(name=name)
            self.largest = self.add_variable((), "zeros", name="largest")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(keras.ops.abs(y_true))))

        def result(self):
            return keras.ops.convert_to_tensor(self.largest)

    rank, size, batch = hvd.rank(), hvd.size(), 4
    x, y = models.data(batch * size * 3)
    vx, vy = models.data(23, seed=4)
    w = np.linspace(0.1, 2, len(x) + 23).astype("float32")
    w, vw = w[: len(x)], w[len(x) :]
    mine = slice(0, 5) if rank == 0 else slice(5, 23)

    binary = (y > 0) * np.float32(1.0)
    whole = (x, binary, w)

    def run(model, optimizer, rows, val, batch, callbacks=()):
        own = [Largest(), keras.metrics.AUC(name="auc")]
        model.compile(optimizer=optimizer, loss="mse", metrics=["mse", *own], weighted_metrics=["mae"])
        a, b, c = rows
        return model.fit(
            a,
            b,
            sample_weight=c,
            batch_size=batch,
            epochs=2,
            validation_freq=2,
            validation_data=(vx[val], (vy[val] > 0) * np.float32(1.0), vw[val]),
            shuffle=False,
            verbose=0,
            callbacks=list(callbacks),
        ).history

    alone = run(models.model(), keras.optimizers.SGD(0.05), whole, slice(0, 23), batch * size)
    parts = [models.shard(one, batch) for one in whole]
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(dict(logs))

    callbacks = [hvd.callbacks.MetricAverageCallback(), Watch()]
    model = models.model()
    ours = run(model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), parts, mine, batch, callbacks)
    for key in ("loss", "mse", "mae", "auc", "val_loss", "val_mse", "val_mae", "val_auc"):
        np.testing.assert_allclose(ours[key], alone[key], rtol=2e-4, err_msg=key)
        np.testing.assert_allclose([logs[key] for logs in seen if key in logs], ours[key], err_msg=key)
    # Not summed: between the ranks' values.
    assert all(0 < value <= 1 for value in ours["largest"] + ours["val_largest"])
    # evaluate stays local to each rank, and metrics keep their values.
    from horovod.common.objects import allgather_object

    part = (vx[mine], (vy[mine] > 0) * np.float32(1.0))
    first, second, *_ = allgather_object(model.evaluate(*part, verbose=0)[0], "evaluated")
    assert first != second
