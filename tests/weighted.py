"""Check of ``allreduce(x, weight=n)``, the same for all frontends: it runs on each of two ranks."""

import numpy as np
import pytest


def check(hvd, make, add_set=None, halves=("float16",), traced=None):
    """Compare weighted averages with NumPy.

    Args:
        hvd: Frontend.
        make: Function (array, dtype) -> tensor of the frontend.
        add_set: ``hvd.add_process_set``, or None if ``allreduce`` has no process sets.
        halves: Names of 16-bit dtypes.
        traced: Decorator that compiles a function, or None.
    """
    rank, ranks = hvd.rank(), range(hvd.size())
    rows = [np.linspace(-3, 7 + r, 6).reshape(2, 3) for r in ranks]

    def mean(numbers):
        return sum(n * row for n, row in zip(numbers, rows, strict=True)) / sum(numbers)

    def reduce(x, n, **options):
        return np.asarray(hvd.allreduce(x, weight=n, **options)).astype(np.float64)

    for dtype, tolerance in (("float64", 1e-12), ("float32", 1e-6), *((half, 1e-2) for half in halves)):
        own = make(rows[rank], dtype)
        tolerance = max(tolerance, 1e-12 if "64" in str(own.dtype) else 1e-6)  # JAX can have no float64
        hvd.allreduce(own)  # a call that NumPy repeats without further checks
        assert str(hvd.allreduce(own, weight=1, name="dtype").dtype).endswith(str(own.dtype).split(".")[-1])
        for numbers in ([3, 5], [0, 2.5], [10**9, 10**8]):
            expected = mean(numbers)
            np.testing.assert_allclose(reduce(own, numbers[rank]), expected, rtol=tolerance, atol=tolerance)
            compressed = reduce(own, numbers[rank], compression=hvd.Compression.fp16, name="compressed")
            np.testing.assert_allclose(compressed, expected, rtol=1e-2, atol=1e-2)
    large = np.full(3, 6e4) * (1 if rank else -1)  # times a weight, this overflows float16
    for options in ({}, {"compression": hvd.Compression.fp16}):
        result = reduce(make(large, "float16"), 10**6 * (1 + rank), **options)
        np.testing.assert_allclose(result, np.full(3, 2e4), rtol=2e-3)
    empty = make(np.full(3, np.nan if rank == 0 else 2.0), "float32")
    np.testing.assert_array_equal(reduce(empty, rank), np.full(3, 2.0))  # NaN with weight 0 does not count
    np.testing.assert_array_equal(reduce(empty, 0), np.zeros(3))
    if add_set is not None:
        alone = add_set([1])
        if rank == 1:
            np.testing.assert_allclose(reduce(empty, 4, process_set=alone), np.full(3, 2.0))
        hvd.remove_process_set(alone)
    if traced is not None:
        step = traced(lambda x, n: hvd.allreduce(x, weight=n, name="traced"))
        for numbers in ([3, 5], [0, 2]):
            result = np.asarray(step(make(rows[rank], "float32"), make(np.array(numbers[rank]), "float32")))
            np.testing.assert_allclose(result, mean(numbers), rtol=1e-6)
    for op in (hvd.Sum, hvd.Adasum if hasattr(hvd, "Adasum") else hvd.Max):
        with pytest.raises(ValueError, match="weight requires op=Average, got op="):
            hvd.allreduce(empty, op=op, weight=1)
    for wrong in (-1, np.nan, "many"):
        with pytest.raises(ValueError, match="weight must be a"):
            hvd.allreduce(empty, weight=wrong)
    with pytest.raises(ValueError, match=r"must be 1.0 with weight, got \(2.0, 1.0\)"):
        hvd.allreduce(empty, weight=1, prescale_factor=2.0)
    with pytest.raises(ValueError, match="floating-point"):
        hvd.allreduce(make(np.ones(2), "int32"), weight=1)
