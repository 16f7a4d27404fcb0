"""MetricAverageCallback, in fit."""

import numpy as np
import pytest

from tests.keras.modules import hvd, keras, models
from tests.ranks import on_keras3


@pytest.mark.heavy
@on_keras3(2)
def test_weighted_metrics_equal_one_process():
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
    own = slice(0, 5) if rank == 0 else slice(5, 23)

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
    distributed = run(model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), parts, own, batch, callbacks)
    for key in ("loss", "mse", "mae", "auc", "val_loss", "val_mse", "val_mae", "val_auc"):
        np.testing.assert_allclose(distributed[key], alone[key], rtol=2e-4, err_msg=key)
        np.testing.assert_allclose([logs[key] for logs in seen if key in logs], distributed[key], err_msg=key)
    # Not summed: between the ranks' values.
    assert all(0 < value <= 1 for value in distributed["largest"] + distributed["val_largest"])
    # evaluate stays local to each rank, and metrics keep their values.
    from horovod.common.objects import allgather_object

    part = (vx[own], (vy[own] > 0) * np.float32(1.0))
    first, second, *_ = allgather_object(model.evaluate(*part, verbose=0)[0], "evaluated")
    assert first != second
    for metric in (keras.metrics.AUC(), keras.metrics.Mean()):
        arrays = ((vy > 0).ravel(), np.clip(vx[:, 0], 0, 1)) if metric.name == "auc" else (vx[:, 0], vw)
        metric.update_state(*arrays)
        expected = float(metric.result())
        metric.reset_state()
        metric.update_state(*(one[own] for one in arrays))
        before = float(metric.result())
        np.testing.assert_allclose(hvd.compute_metric(metric), expected, rtol=1e-5)
        assert float(metric.result()) == before
    with pytest.raises(ValueError, match="use hvd"):
        hvd.compute_metric(Largest())
