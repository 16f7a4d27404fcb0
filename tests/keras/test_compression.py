"""Each compressor through each public function of the Keras frontends that takes one, on each backend."""

import numpy as np
import pytest

from tests.keras.modules import hvd, keras

CHOICES = ("none", "fp16", "bf16", "wire_fp16", "wire_bf16", "wire_int8")


def gradients_of(rank):
    return (np.linspace(0.1, 1.0, 600) + rank).astype(np.float32)


def all_averages(folder):
    """Return by compressor and function the average of all ranks' values."""
    rank = hvd.rank()
    own = gradients_of(rank)

    def updated(optimizer):
        variable = keras.Variable(np.zeros(600, "float32"))
        optimizer.apply([keras.ops.convert_to_tensor(own)], [variable])
        return -keras.ops.convert_to_numpy(variable)

    def loaded(compression):
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1.0), "mse")
        path = f"{folder}/{rank}.keras"
        model.save(path)
        return hvd.load_model(path, compression=compression).optimizer._hvd.reduction.compression is compression

    results = {}
    for choice in CHOICES:
        one = getattr(hvd.Compression, choice)
        results[choice] = {
            "allreduce": keras.ops.convert_to_numpy(hvd.allreduce(own, compression=one)),
            "optimizer": updated(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=one)),
            "grouped": updated(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=one, groups=1)),
            "partial": updated(hvd.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), compression=one)),
        }
        assert loaded(one)
    return results


@pytest.mark.heavy
def test_each_compressor_through_each_function(keras3, tmp_path):
    exact = np.mean([gradients_of(rank) for rank in range(2)], axis=0)
    first, second = keras3(2).run(all_averages, str(tmp_path))
    for choice, results in first.items():
        for name, result in results.items():
            label = f"{choice}, {name}"
            assert result.dtype == np.float32, label
            np.testing.assert_array_equal(result, second[choice][name], err_msg=label)
            np.testing.assert_allclose(result, exact, atol=0.02, err_msg=label)
            rounded = np.mean(np.abs(result - exact) > 1e-6)  # True if values were compressed before they were sent
            assert (rounded > 0.3) == (choice != "none"), f"{label}: {rounded}"
