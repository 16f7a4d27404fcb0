"""BroadcastGlobalVariablesCallback: all ranks begin with the root's state; rank-local state is kept."""

import numpy as np
import pytest

from tests.keras.modules import hvd, keras, models
from tests.ranks import on_keras3, on_keras_on_tensorflow


@on_keras_on_tensorflow(2)
def test_broadcast_variables_leaves_gradients_that_are_accumulated():
    """As called by programs with custom loops."""
    import tensorflow as tf

    import horovod.tensorflow as hvd
    from horovod.keras import DistributedOptimizer

    rank = hvd.rank()
    variable = keras.Variable(np.zeros(2, "float32"))
    optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0, gradient_accumulation_steps=2))
    for step in range(4):
        optimizer.apply_gradients([(tf.ones(2) * (rank + 1.0) * (step + 1), variable)])
        if step == 0:
            hvd.broadcast_variables([variable], root_rank=0)
            hvd.broadcast_variables(optimizer.variables, root_rank=0)
    np.testing.assert_allclose(variable.numpy(), [-1.5 * (1 + 2 + 3 + 4) / 2] * 2)


def resuming(folder):
    from horovod.common.objects import broadcast_object

    rank, size, batch = hvd.rank(), hvd.size(), 4
    x, y = models.data(batch * size * 3)
    parts = models.shard(x, batch), models.shard(y, batch)
    first = models.model()
    first.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9), loss="mse")
    first.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    first.optimizer.learning_rate = 0.02
    path = f"{folder}/model.keras"
    if rank == 0:
        first.save(path)
    broadcast_object(None, 0, "saved")
    alone = keras.models.load_model(path)
    alone.fit(x, y, batch_size=batch * size, epochs=2, shuffle=False, verbose=0)
    for how in ("loaded", "loaded by a callback", "cloned"):
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        if rank == 0 and how == "loaded":
            loaded = hvd.load_model(path)
        else:
            loaded = models.model(seed=7 + rank)
            if rank == 0 and how == "cloned":
                loaded = keras.models.clone_model(loaded)
            loaded.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9)), loss="mse")
        if rank == 0 and how == "cloned":
            loaded.set_weights(first.get_weights())
            loaded.optimizer.build(loaded.trainable_variables)
            for actual, expected in zip(loaded.optimizer.variables, first.optimizer.variables, strict=True):
                actual.assign(expected)
        if how == "loaded by a callback":

            class Load(keras.callbacks.Callback):
                def on_train_begin(self, logs=None):
                    self.model.load_weights(path)

            callbacks += [Load()] if rank == 0 else []
        paths = [variable.path for variable in loaded.trainable_variables]
        loaded.fit(*parts, batch_size=batch, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
        models.assert_same_everywhere(loaded)
        if how != "loaded by a callback" or keras.config.backend() != "jax":
            models.assert_equal(loaded, alone)
        if how == "loaded":
            return_paths = paths
    return return_paths


@pytest.mark.heavy
def test_resuming_only_on_the_root_equals_loading_on_all_ranks(keras3, tmp_path):
    first, second = keras3(2).run(resuming, str(tmp_path))
    assert first != second, "names of variables are the same, which tests nothing"


@on_keras3(2)
def test_different_variables_on_ranks_are_reported():
    model = models.model()
    kind = keras.optimizers.SGD if hvd.rank() == 0 else keras.optimizers.Adam
    model.compile(optimizer=hvd.DistributedOptimizer(kind(0.01)), loss="mse")
    with pytest.raises(ValueError, match="optimizer of rank 0 and rank 1 differ: 6 and 14 variables"):
        model.fit(*models.data(8), verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
