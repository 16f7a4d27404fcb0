"""Kernels that block TensorFlow's threads: the fallback for versions whose asynchronous kernels are unknown."""

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow import _library


@pytest.mark.heavy
def test_blocking_kernels_give_the_same_results_without_deadlock(tf_pool):
    def work():
        assert not _library.blocking()
        _library.library.hvd_tf_set_blocking(1)
        try:
            assert _library.blocking()

            @tf.function
            def step(x):
                # More operations than threads: each rank's threads would all be blocked by different
                # operations.
                sums = [hvd.allreduce(x * float(i), op=hvd.Sum, name=f"blocked.{i}") for i in range(40)]
                return tf.add_n(sums), hvd.allgather(x[: hvd.rank() + 1], name="blocked.gathered")

            for _ in range(5):
                total, gathered = step(tf.ones([4]) * (hvd.rank() + 1))
            eager = hvd.allreduce(tf.ones([2]), op=hvd.Sum)
            try:
                step(tf.ones([4 + hvd.rank()]))
            except tf.errors.FailedPreconditionError:
                refused = True
            else:
                refused = False
            return total.numpy().tolist(), gathered.numpy().tolist(), float(np.sum(eager)), refused
        finally:
            _library.library.hvd_tf_set_blocking(0)

    expected = ([sum(range(40)) * 3.0] * 4, [1.0, 2.0, 2.0], 4.0, True)
    assert tf_pool(2).run(work) == [expected] * 2
