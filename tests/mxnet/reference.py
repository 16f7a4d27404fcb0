"""Values by rank, and NumPy's results for them."""

import mxnet as mx
import numpy as np

DTYPES = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64", "bool")
"""The dtypes of MXNet 1.9's Python API, except bfloat16."""


def values(dtype, shape, size, seed=1):
    """Return NumPy arrays for all ranks, deterministic; small integers, so that the order of sums does not matter."""
    random = np.random.RandomState(seed)
    numbers = random.randint(0, 2 if dtype == "bool" else 5, (size, *shape))
    return list(numbers.astype(dtype))


def array(value):
    return mx.nd.array(value, dtype=value.dtype)


def assert_same(actual, expected):
    """Assert that an NDArray equals the expected array, bit for bit."""
    expected = np.asarray(expected)
    assert actual.dtype == expected.dtype.type, (actual.dtype, expected.dtype)
    np.testing.assert_array_equal(actual.asnumpy(), expected)
