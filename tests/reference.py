"""Expected results of collectives, computed with NumPy alone, because some test environments lack other packages."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from horovod.common import ops
from tests.conformance.cases import FLOATS

Array = np.ndarray[Any, Any]


def value(rank: int, dtype: Any, shape: Sequence[int], high: int = 4) -> Array:
    """Return the input of a rank: small integers, so that sums are exact in every dtype; deterministic."""
    generator = np.random.default_rng(1000 * rank + sum((i + 1) * n for i, n in enumerate(shape)))
    return np.asarray(generator.integers(0, high, tuple(shape))).astype(dtype)


def reduced(op: int, inputs: Sequence[Array], pre: float = 1.0, post: float = 1.0) -> Array:
    """Return the reduction of all inputs, for values that are exact in every dtype.

    It is computed in double precision and rounded once. Integers are truncated before the reduction (``pre``) and
    after it (``post``, and the division of an average). For bool, Sum and Max are "or", Product and Min "and".
    """
    dtype = inputs[0].dtype
    if dtype == np.bool_:
        wide = np.stack(inputs)
        return np.asarray(wide.all(0) if op in (ops.Min, ops.Product) else wide.any(0))
    floating = dtype.name in FLOATS
    wide = np.stack([x.astype(np.float64) for x in inputs]) * pre
    if not floating:
        wide = np.trunc(wide)
    reduce = {ops.Product: np.prod, ops.Min: np.min, ops.Max: np.max}.get(op, np.sum)
    result = reduce(wide, axis=0) * (post / len(inputs) if op == ops.Average else post)
    return np.asarray(result if floating else np.trunc(result).astype(np.int64)).astype(dtype)


def assert_same(actual: Any, expected: Array) -> None:
    """Assert equal dtype, shape and bits. ``actual``: an array or array-like object."""
    actual = np.asarray(actual)
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    assert actual.tobytes() == expected.tobytes(), (actual, expected)


def assert_close(actual: Any, expected: Array) -> None:
    """Assert equal dtype and shape, and values equal up to one rounding."""
    actual = np.asarray(actual)
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    tolerance = {"float16": 1e-3, "bfloat16": 1e-2}.get(expected.dtype.name, 1e-6)
    np.testing.assert_allclose(actual.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance)


def is_exact(op: int, dtype: Any, pre: float, post: float) -> bool:
    """Return True if the reduction of such values is exact, without rounding."""
    return dtype.name not in FLOATS or (op != ops.Average and pre == 1.0 and post == 1.0)


def assert_reduced(actual: Any, op: int, inputs: Sequence[Array], pre: float = 1.0, post: float = 1.0) -> None:
    """Assert that ``actual`` is the reduction: exactly, or up to one rounding for floats that are divided or scaled."""
    expected = reduced(op, inputs, pre, post)
    (assert_same if is_exact(op, expected.dtype, pre, post) else assert_close)(actual, expected)
