"""Two frameworks in one process: PyTorch and TensorFlow share the one engine and do not get in each other's way."""

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
