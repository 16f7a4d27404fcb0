"""What collectives have to give, computed in one process in double precision or 64-bit integers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
from tests.reference import reduced
from tests.reference import value as of_numpy

FLOATS = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
INTS = [tf.uint8, tf.int8, tf.uint16, tf.int16, tf.int32, tf.int64]
ALL = [tf.bool, *INTS, *FLOATS]
SHAPES = [(), (1,), (17,), (3, 5), (0,), (4, 0, 2), (1031,)]


def value(rank: int, dtype: tf.DType, shape: Sequence[int], high: int = 4) -> np.ndarray:
    """The input of a rank: small whole numbers, so that sums are exact in every dtype; the same in every process."""
    return of_numpy(rank, dtype.as_numpy_dtype, shape, high)


def values(dtype: tf.DType, shape: Sequence[int]) -> list[np.ndarray]:
    """The inputs of all ranks."""
    return [value(rank, dtype, shape) for rank in range(hvd.size())]


def assert_same(actual: Any, expected: np.ndarray) -> None:
    """Equal in dtype, shape and every bit."""
    actual = actual.numpy() if hasattr(actual, "numpy") else np.asarray(actual)
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    assert actual.tobytes() == np.ascontiguousarray(expected).tobytes(), (actual, expected)


def assert_close(actual: Any, expected: Any, tolerance: float = 1e-6) -> None:
    """Equal in shape, and in values but for rounding."""
    actual = np.asarray(actual, np.float64)
    expected = np.asarray(expected, np.float64)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def assert_reduced(actual: Any, op: int, inputs: Sequence[np.ndarray], pre: float = 1.0, post: float = 1.0) -> None:
    """``actual`` is the reduction: exactly, but for one rounding in floats that are divided or scaled."""
    expected = reduced(op, inputs, pre, post)
    dtype = tf.as_dtype(expected.dtype)
    if dtype.is_floating and (op == hvd.Average or pre != 1.0 or post != 1.0):
        assert actual.dtype == dtype
        tolerance = {tf.float16: 1e-3, tf.bfloat16: 1e-2}.get(dtype, 1e-6)
        assert_close(tf.cast(actual, tf.float64).numpy(), expected.astype(np.float64), tolerance)
    else:
        assert_same(actual, expected)
