"""Several faces in one process share the one engine and do not get in each other's way."""

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("torch")


def test_both_use_one_engine_and_may_interleave(tf_pool):
    def work():
        import tensorflow as tf
        import torch

        import horovod.tensorflow as hvd_tf
        import horovod.torch as hvd_torch
        from horovod.common.state import state

        engine, before = state.engine, state.engine.stats()["operations"]
        rank = hvd_torch.rank()
        handle = hvd_torch.allreduce_async_(torch.full((3,), float(rank)), op=hvd_torch.Sum, name="a")
        other = hvd_tf.allreduce(tf.fill((2,), float(rank)), op=hvd_tf.Sum, name="b")
        mine = hvd_torch.synchronize(handle)
        in_function = tf.function(lambda x: hvd_tf.allgather(x, name="c"))(tf.fill((1,), rank))
        assert state.engine is engine
        assert engine.stats()["operations"] - before >= 3
        return (
            [hvd_tf.rank(), hvd_tf.size()] == [rank, hvd_torch.size()],
            mine.tolist(),
            other.numpy().tolist(),
            in_function.numpy().tolist(),
        )

    assert tf_pool(2).run(work) == [(True, [1.0] * 3, [1.0] * 2, [0, 1])] * 2


def test_equal_names_at_once(tf_pool):
    def work():
        import tensorflow as tf
        import torch

        import horovod.tensorflow as hvd_tf
        import horovod.torch as hvd_torch

        rank = hvd_torch.rank()
        results = []
        for step in range(20):
            # Ranks begin with different frameworks: the names would cross if they were one.
            other = None if rank == 0 else hvd_tf.allreduce(tf.fill((2,), 10.0 * step), op=hvd_tf.Sum, name="same")
            handle = hvd_torch.allreduce_async(torch.full((3,), float(step)), op=hvd_torch.Sum, name="same")
            if rank == 0:
                other = hvd_tf.allreduce(tf.fill((2,), 10.0 * step), op=hvd_tf.Sum, name="same")
            results.append((hvd_torch.synchronize(handle).tolist(), other.numpy().tolist()))
            assert (
                hvd_tf.broadcast_object("tf", 0, name="o") + hvd_torch.broadcast_object("torch", 0, name="o")
                == "tftorch"
            )
        return results

    for results in tf_pool(2).run(work):
        assert results == [([2.0 * step] * 3, [20.0 * step] * 2) for step in range(20)]


def test_equal_names_from_two_threads(tf_pool):
    """Each face has a thread that uses the same names at the same time, for tensors of other shapes and types."""

    def work():
        import threading

        import tensorflow as tf
        import torch

        import horovod.tensorflow as hvd_tf
        import horovod.torch as hvd_torch

        rank, names = hvd_torch.rank(), ["x", "allreduce.x", "y"]
        start, results = threading.Barrier(2), {"torch": [], "tensorflow": []}

        def in_torch(turn):
            handles = [
                hvd_torch.allreduce_async(torch.full((5,), float(turn + rank)), op=hvd_torch.Sum, name=name)
                for name in names
            ]
            return [hvd_torch.synchronize(handle).tolist() for handle in handles]

        def in_tensorflow(turn):
            value = tf.fill((2, 3), turn - rank)
            return [hvd_tf.allreduce(value, op=hvd_tf.Sum, name=name).numpy().tolist() for name in names]

        def repeat(kind, function):
            start.wait(30)
            for turn in range(20):
                results[kind].append(function(turn))

        # The other one first on the other rank.
        jobs = [("torch", in_torch), ("tensorflow", in_tensorflow)][:: 1 if rank == 0 else -1]
        threads = [threading.Thread(target=repeat, args=job, daemon=True) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(40)
        assert not any(thread.is_alive() for thread in threads)
        assert results["torch"] == [[[2.0 * turn + 1] * 5] * 3 for turn in range(20)]
        assert results["tensorflow"] == [[[[2 * turn - 1] * 3] * 2] * 3 for turn in range(20)]

    tf_pool(2).run(work)


def test_shutdown_of_one_leaves_the_other_at_work(tf_pool):
    def work():
        import tensorflow as tf
        import torch

        import horovod.tensorflow as hvd_tf
        import horovod.torch as hvd_torch
        from horovod.common.state import state

        def torch_works():
            return hvd_torch.allreduce(torch.ones(2), op=hvd_torch.Sum, name="t").tolist() == [2.0, 2.0]

        def tensorflow_works():
            return hvd_tf.allreduce(tf.ones(2), op=hvd_tf.Sum, name="t").numpy().tolist() == [2.0, 2.0]

        # The first before any init in this process, the second after a shutdown.
        with pytest.raises((tf.errors.FailedPreconditionError, tf.errors.UnknownError), match="init"):
            tensorflow_works()
        hvd_torch.init()
        assert not hvd_tf.is_initialized()
        hvd_tf.init()
        engine = state.engine
        assert torch_works()
        assert tensorflow_works()

        hvd_torch.shutdown()
        assert not hvd_torch.is_initialized()
        assert hvd_tf.is_initialized()
        with pytest.raises(RuntimeError, match="shut down"):
            torch_works()
        with pytest.raises(ValueError, match="init"):
            hvd_torch.rank()
        assert tensorflow_works()
        hvd_torch.init()
        hvd_tf.shutdown()
        with pytest.raises(tf.errors.UnknownError, match="shut down"):
            tensorflow_works()
        assert torch_works()
        assert state.engine is engine
        hvd_torch.shutdown()
        assert state.engine is None
        hvd_tf.shutdown()  # harmless

        hvd_tf.init()
        assert tensorflow_works()
        hvd_tf.shutdown()
        return True

    assert tf_pool(2, initialized=False).run(work) == [True, True]


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

        rank, results = hvd_np.rank(), {}
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
