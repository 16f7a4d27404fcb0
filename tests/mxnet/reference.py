"""Values by rank, and what NumPy makes of them."""

import mxnet as mx
import numpy as np

DTYPES = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64", "bool")
"""Those that MXNet 1.9's Python has, apart from bfloat16."""


def values(dtype, shape, size, seed=1):
    """NumPy arrays for all ranks, the same on each; small numbers, so that no order of sums matters."""
    random = np.random.RandomState(seed)
    numbers = random.randint(0, 2 if dtype == "bool" else 5, (size, *shape))
    return list(numbers.astype(dtype))


def array(value):
    return mx.nd.array(value, dtype=value.dtype)


def assert_same(given, wanted):
    """An NDArray, and what it is to be, to the bit."""
    wanted = np.asarray(wanted)
    assert given.dtype == wanted.dtype.type, (given.dtype, wanted.dtype)
    np.testing.assert_array_equal(given.asnumpy(), wanted)
