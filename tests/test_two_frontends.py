"""Several frontends in one process share one engine and do not disturb each other."""

import numpy as np
import pytest

from tests.later import Later, need
from tests.ranks import on_keras_on_jax, on_keras_on_tensorflow, on_tensorflow

need("tensorflow", "torch")

tf, torch, jnp = Later("tensorflow"), Later("torch"), Later("jax.numpy")
hvd_tf, hvd_torch, hvd_np = Later("horovod.tensorflow"), Later("horovod.torch"), Later("horovod.numpy")
keras, hvd_keras, hvd_tf_keras = Later("keras"), Later("horovod.keras"), Later("horovod.tensorflow.keras")


@pytest.mark.heavy
@on_tensorflow(2)
def test_equal_names_in_parallel():
    """Ranks begin with different frontends, so shared names would match the wrong operations."""
    from horovod.common.frontends import state

    rank, engine, before = hvd_torch.rank(), state.engine, state.engine.stats()["operations"]

    def in_tensorflow(step):
        summed = hvd_tf.allreduce(tf.fill((2,), 10.0 * step), op=hvd_tf.Sum, name="same")
        assert summed.numpy().tolist() == [20.0 * step] * 2

    for step in range(10):
        if rank == 1:
            in_tensorflow(step)
        handle = hvd_torch.allreduce_async(torch.full((3,), float(step)), op=hvd_torch.Sum, name="same")
        array = hvd_np.allreduce_async(np.arange(4.0) + step, op=hvd_np.Sum, name="same")
        if rank == 0:
            in_tensorflow(step)
        assert hvd_torch.synchronize(handle).tolist() == [2.0 * step] * 3
        assert array.result(60).tolist() == [2.0 * (i + step) for i in range(4)]
        objects = hvd_tf.broadcast_object("tf", 0, name="o"), hvd_torch.broadcast_object("torch", 0, name="o")
        assert objects == ("tf", "torch")
    gathered = tf.function(lambda x: hvd_tf.allgather(x, name="same"))(tf.fill((1,), rank))
    assert gathered.numpy().tolist() == [0, 1]
    assert hvd_tf.rank() == hvd_np.rank() == rank
    assert state.engine is engine
    assert engine.stats()["operations"] - before >= 50


@on_keras_on_tensorflow(2)
def test_keras_tensorflow_and_pytorch_share_the_job():
    assert hvd_keras.size() == hvd_tf_keras.size() == hvd_tf.size() == 2
    optimizer = hvd_tf.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd_tf.Sum, groups=1)
    variable = keras.Variable([0.0, 0.0])
    optimizer.apply([keras.ops.ones(2)], [variable])
    assert keras.ops.convert_to_numpy(variable).tolist() == [-2.0, -2.0]
    assert hvd_torch.allreduce(torch.ones(2), op=hvd_torch.Sum, name="DistributedSGD.0").tolist() == [2.0, 2.0]


@pytest.mark.heavy
@on_keras_on_jax(2)
def test_keras_on_jax_pytorch_and_plain_arrays():
    rank = hvd_np.rank()
    for turn in range(5):
        own = hvd_np.allreduce_async(np.full(3, turn + rank), op=hvd_np.Sum, name="same")
        other = hvd_torch.allreduce_async(torch.full((4,), float(turn)), op=hvd_torch.Sum, name="same")
        third = hvd_keras.allreduce(jnp.full((2,), float(rank)), op=hvd_keras.Sum, name="same")
        assert np.asarray(third).tolist() == [1.0] * 2
        assert hvd_torch.synchronize(other).tolist() == [2.0 * turn] * 4
        assert own.result(60).tolist() == [2 * turn + 1] * 3
    # Pass arrays of one library to the frontend of another.
    assert hvd_np.allreduce(jnp.ones(2), op=hvd_np.Sum).tolist() == [2.0, 2.0]
    with pytest.raises(ValueError, match=r"allreduce\.x on rank \d: .*cannot be changed in place"):
        hvd_np.allreduce_(jnp.ones(2), name="x")
    assert hvd_np.broadcast(torch.full((2,), rank), 1).tolist() == [1, 1]
