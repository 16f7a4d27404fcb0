"""Several frontends in one process share one engine and do not disturb each other."""

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("torch")


def test_plain_arrays_beside_two_frameworks(tf_pool):
    """Equal names at once, in three threads, which begin with different faces on different ranks; and handles of one
    face while another waits."""

    def work():
        import threading

        import numpy as np
        import tensorflow as tf
        import torch

        import horovod.numpy as hvd_np
        import horovod.tensorflow as hvd_tf
        import horovod.torch as hvd_torch
        from horovod.common.state import state

        rank, results, engine = hvd_np.rank(), {}, state.engine
        handle = hvd_np.allreduce_async(np.arange(4.0), op=hvd_np.Sum, name="same")
        assert hvd_torch.allreduce(torch.ones(2), op=hvd_torch.Sum, name="same").tolist() == [2.0, 2.0]
        assert hvd_tf.allreduce(tf.ones(3), op=hvd_tf.Sum, name="same").numpy().tolist() == [2.0] * 3
        assert handle.result(60).tolist() == [0.0, 2.0, 4.0, 6.0]

        def repeat(name, act):
            results[name] = [act(float(turn)) for turn in range(10)]

        jobs = [
            ("numpy", lambda x: hvd_np.allreduce(np.full(2, x + rank), op=hvd_np.Sum, name="x").tolist()),
            ("torch", lambda x: hvd_torch.allreduce(torch.full((3,), x), op=hvd_torch.Max, name="x").tolist()),
            ("tensorflow", lambda x: hvd_tf.allreduce(tf.fill((1,), x), op=hvd_tf.Sum, name="x").numpy().tolist()),
        ]
        threads = [threading.Thread(target=repeat, args=job, daemon=True) for job in jobs[rank:] + jobs[:rank]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(40)
        assert not any(thread.is_alive() for thread in threads)
        assert results["numpy"] == [[2.0 * turn + 1] * 2 for turn in range(10)]
        assert results["torch"] == [[float(turn)] * 3 for turn in range(10)]
        assert results["tensorflow"] == [[2.0 * turn] for turn in range(10)]
        in_function = tf.function(lambda x: hvd_tf.allgather(x, name="same"))(tf.fill((1,), rank))
        assert in_function.numpy().tolist() == [0, 1]
        assert state.engine is engine

        # What one face cannot take leaves the others at work; one that leaves does, too.
        with pytest.raises(ValueError, match="complex128"):
            hvd_np.allreduce(np.ones(3, complex), name="y")
        hvd_np.shutdown()
        with pytest.raises(RuntimeError, match="shut down"):
            hvd_np.allreduce(np.ones(3))
        assert hvd_torch.allreduce(torch.ones(2), op=hvd_torch.Sum).tolist() == [2.0, 2.0]
        hvd_np.init()
        assert hvd_np.allreduce(np.ones(3), op=hvd_np.Sum).tolist() == [2.0] * 3
        return sorted({"numpy", "torch", "tensorflow"} & set(state.faces))

    assert tf_pool(2).run(work) == [["numpy", "tensorflow", "torch"]] * 2


@pytest.mark.heavy
def test_keras_on_jax_pytorch_and_plain_arrays(keras_pool):
    pytest.importorskip("jax")

    def work():
        import jax
        import numpy as np
        import torch

        import horovod.keras as hvd_keras
        import horovod.numpy as hvd_np
        import horovod.torch as hvd_torch

        rank = hvd_np.rank()
        for turn in range(5):
            mine = hvd_np.allreduce_async(np.full(3, turn + rank), op=hvd_np.Sum, name="same")
            other = hvd_torch.allreduce_async(torch.full((4,), float(turn)), op=hvd_torch.Sum, name="same")
            third = hvd_keras.allreduce(jax.numpy.full((2,), float(rank)), op=hvd_keras.Sum, name="same")
            assert np.asarray(third).tolist() == [1.0] * 2
            assert hvd_torch.synchronize(other).tolist() == [2.0 * turn] * 4
            assert mine.result(60).tolist() == [2 * turn + 1] * 3
        # Arrays of one library through the face of another.
        assert hvd_np.allreduce(jax.numpy.ones(2), op=hvd_np.Sum).tolist() == [2.0, 2.0]
        with pytest.raises(ValueError, match=r"allreduce\.x on rank \d: .*cannot be changed in place"):
            hvd_np.allreduce_(jax.numpy.ones(2), name="x")
        assert hvd_np.broadcast(torch.full((2,), rank), 1).tolist() == [1, 1]

    keras_pool("jax")(2).run(work)
