"""Inputs of the current job's ranks in TensorFlow's dtypes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
from tests.reference import assert_reduced, assert_same
from tests.reference import value as of_numpy

__all__ = ["ALL", "assert_close", "assert_reduced", "assert_same", "value", "values"]

FLOATS = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
INTS = [tf.uint8, tf.int8, tf.uint16, tf.int16, tf.int32, tf.int64]
ALL = [tf.bool, *INTS, *FLOATS]


def value(rank: int, dtype: tf.DType, shape: Sequence[int], high: int = 4) -> np.ndarray:
    """Return the input of a rank: small integers, so that sums are exact in every dtype; deterministic."""
    return of_numpy(rank, dtype.as_numpy_dtype, shape, high)


def values(dtype: tf.DType, shape: Sequence[int]) -> list[np.ndarray]:
    """Return the inputs of all ranks."""
    return [value(rank, dtype, shape) for rank in range(hvd.size())]


def assert_close(actual: Any, expected: Any, tolerance: float = 1e-6) -> None:
    """Assert equal shape, and values equal up to rounding."""
    actual = np.asarray(actual, np.float64)
    expected = np.asarray(expected, np.float64)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
