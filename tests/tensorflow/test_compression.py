"""Each compressor through each public function that takes one."""

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from tests.ranks import on_tensorflow

CHOICES = ("none", "fp16", "bf16", "wire_fp16", "wire_bf16", "wire_int8")


class Doubled:
    """A user-defined compressor."""

    @staticmethod
    def compress(tensor):
        return tensor * 2.0, "context"

    @staticmethod
    def decompress(tensor, context):
        assert context == "context"
        return tensor * 0.5


def gradients_of(rank):
    return (np.linspace(0.1, 1.0, 600) + rank).astype(np.float32)


def all_averages(choice):
    """Return the average of all ranks' tensors by each function that accepts this compressor; else the error."""
    compression = Doubled if choice == "own" else getattr(hvd.Compression, choice)
    own = tf.constant(gradients_of(hvd.rank()))
    layer = tf.keras.layers.Dense(1, use_bias=False)
    layer.build((None, 2))

    def slices():
        one = tf.IndexedSlices(own[tf.newaxis], tf.constant([hvd.rank()]), tf.constant([hvd.size(), 600]))
        return tf.reduce_sum(hvd.allreduce(one, compression=compression).values, axis=0)

    weights = tf.Variable(tf.zeros([600]))

    def tape(make, variable=weights, **options):
        with make(tf.GradientTape(), compression=compression, **options) as wrapped:
            loss = tf.reduce_sum(variable * own)
        return wrapped.gradient(loss, [variable])[0]

    def in_a_function(**options):
        return tf.function(lambda: tape(hvd.DistributedGradientTape, **options))()

    def optimizer(**options):
        variable = tf.Variable(tf.zeros([600]))
        plain = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        wrapped = hvd.DistributedOptimizer(plain, compression=compression, **options)
        return wrapped.compute_gradients(lambda: tf.reduce_sum(variable * own), [variable])[0][0]

    def of_keras():
        variable = tf.keras.Variable(np.zeros(600, np.float32))
        wrapped = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), compression=compression)
        wrapped.apply([own], [variable])
        return -tf.convert_to_tensor(variable)

    functions = {
        "allreduce": lambda: hvd.allreduce(own, compression=compression),
        "grouped_allreduce": lambda: hvd.grouped_allreduce([own, own + 1], compression=compression)[1] - 1,
        "sparse": slices,
        "reducescatter": lambda: hvd.allgather(hvd.reducescatter(own, compression=compression)),
        "grouped_reducescatter": lambda: hvd.allgather(hvd.grouped_reducescatter([own], compression=compression)[0]),
        "tape": lambda: tape(hvd.DistributedGradientTape),
        "tape of groups": lambda: in_a_function(groups=1),
        "partial tape": lambda: tape(hvd.PartialDistributedGradientTape, local_layers=[layer]),
        "optimizer": optimizer,
        "predivided": lambda: optimizer(gradient_predivide_factor=2.0),
        "keras": of_keras,
    }
    results = {}
    for name, function in functions.items():
        try:
            result = function()
            assert result.dtype == tf.float32
            results[name] = result.numpy()
        except ValueError as error:
            results[name] = str(error)
    return results


LIKE_OTHERS = ("fp16", "wire_fp16", "wire_bf16")


@pytest.mark.parametrize(
    "choice", [pytest.param(one, marks=[pytest.mark.heavy] * (one in LIKE_OTHERS)) for one in (*CHOICES, "own")]
)
def test_each_compressor_through_each_function(tf_pool, choice):
    exact = np.mean([gradients_of(rank) for rank in range(2)], axis=0)
    first, second = tf_pool(2).run(all_averages, choice)
    for name, result in first.items():
        if "scatter" in name and "wire" in choice:
            assert "which works with allreduce only" in result
            continue
        assert isinstance(result, np.ndarray), f"{name}: {result}"
        np.testing.assert_array_equal(result, second[name], err_msg=name)
        np.testing.assert_allclose(result, exact, atol=0.02, err_msg=name)
        rounded = np.mean(np.abs(result - exact) > 1e-6)  # True if the tensor was compressed before it was sent
        assert (rounded > 0.3) == (choice not in ("none", "own") and name != "sparse"), f"{name}: {rounded}"


@on_tensorflow(2)
def test_unsupported_compression():
    own = tf.constant(gradients_of(hvd.rank()))
    for compression in (hvd.Compression.wire_fp16, hvd.Compression.wire_int8):
        for op in (hvd.Max, hvd.Min):
            with pytest.raises(ValueError, match=r"must be Average or Sum|must be one of Average, Sum"):
                hvd.allreduce(own, compression=compression, op=op)
        with pytest.raises(ValueError, match="float64"):
            hvd.allreduce(tf.cast(own, tf.float64), compression=compression)
    # Integers are not compressed.
    whole = tf.constant([2**20 + 1])
    assert hvd.allreduce(whole, op=hvd.Max, compression=hvd.Compression.fp16).numpy().tolist() == [2**20 + 1]
