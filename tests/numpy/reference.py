"""Inputs and results as in tests/conformance, for the ranks of the current job."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

import horovod.numpy as hvd
from tests.conformance.reference import BFLOAT16
from tests.reference import assert_reduced, assert_same, reduced, value

__all__ = ["ALL", "COPIED", "FLOATS", "SHAPES", "assert_reduced", "assert_same", "reduced", "value", "values"]

FLOATS = [np.dtype(name) for name in ("float16", "float32", "float64")] + [BFLOAT16]
INTS = [np.dtype(name) for name in ("uint8", "int8", "uint16", "int16", "int32", "int64")]
ALL = [np.dtype(bool), *INTS, *FLOATS]
COPIED = [np.dtype("uint32"), np.dtype("uint64"), np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)]
SHAPES = [(), (1,), (17,), (3, 5), (0,), (4, 0, 2), (2, 3, 4), (1031,)]


def values(dtype: Any, shape: Sequence[int]) -> list[np.ndarray]:
    """Return the inputs of all ranks."""
    return [value(rank, dtype, shape) for rank in range(hvd.size())]
