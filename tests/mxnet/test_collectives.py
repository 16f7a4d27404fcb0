"""Collectives beyond the conformance suite: arrays of mx.nd, delayed results, views, weights."""

import mxnet as mx
import numpy as np
import pytest

import horovod.mxnet as hvd
from tests.ranks import on_ranks


@on_ranks(2)
def test_results_are_ordinary_arrays():
    """They can be used like any other array."""
    rank, size = hvd.rank(), hvd.size()
    out = hvd.allgather(mx.nd.ones((2, 2)) * rank)
    assert (out * 2 + out).sum().asscalar() == 12 * sum(range(size))
    assert out[2 * size - 1].asnumpy().tolist() == [size - 1] * 2
    out[:] = 5
    assert "5." in repr(out)
    assert out.copy().asnumpy().max() == 5
    assert hvd.allreduce(hvd.allgather(mx.nd.ones((1,))), op=hvd.Sum).asnumpy().tolist() == [size] * size
    for _ in range(3):
        hvd.allgather(mx.nd.ones((1000,)))  # result never used
    weight = mx.nd.ones((1,))
    weight.attach_grad()
    with mx.autograd.record():
        loss = (hvd.allgather(mx.nd.ones((2,)) * (rank + 1)) * weight).sum()
    loss.backward()
    assert weight.grad.asscalar() == size * (size + 1)


@on_ranks(2)
def test_arrays_of_mx_np():
    rank, size = hvd.rank(), hvd.size()
    mx.npx.set_np()
    try:
        for shape in ((2, 3), (), (0, 3)):
            own = mx.np.ones(shape) * (rank + 1)
            out = hvd.allreduce(own, op=hvd.Sum)
            assert type(out) is mx.np.ndarray
            assert out.shape == shape
            np.testing.assert_array_equal(out.asnumpy(), np.ones(shape) * size * (size + 1) / 2)
            np.testing.assert_array_equal(hvd.broadcast_(own, 0).asnumpy(), np.ones(shape))
        out = hvd.allgather(mx.np.ones((rank, 2)))
        assert isinstance(out, mx.np.ndarray)
        assert out.shape == (sum(range(size)), 2)
        assert float(out.sum()) == 2 * sum(range(size))
        out, received = hvd.alltoall(mx.np.ones((size,)) * rank, [1] * size)
        assert out.asnumpy().tolist() == list(range(size))
        assert received.asnumpy().tolist() == [1] * size
        assert hvd.reducescatter(mx.np.ones((1, 2)), op=hvd.Sum).shape == ((1, 2) if rank == 0 else (0, 2))
        scalar = hvd.allgather(mx.np.ones(()))
        with pytest.raises(mx.base.MXNetError, match=r"allgather.*rank"):
            scalar.asnumpy()
        with pytest.raises(ValueError, match=r"reducescatter: the tensor must have .*, got a scalar"):
            hvd.reducescatter(mx.np.ones(()))
    finally:
        mx.npx.reset_np()


@on_ranks(2)
def test_views():
    rank, size = hvd.rank(), hvd.size()
    base = mx.nd.arange(12).reshape((4, 3)) + 100 * rank
    hvd.allreduce_(base[1:3], op=hvd.Sum)
    expected = np.arange(12).reshape(4, 3) + 100.0 * rank
    expected[1:3] = np.sum([np.arange(12).reshape(4, 3)[1:3] + 100.0 * r for r in range(size)], 0)
    np.testing.assert_array_equal(base.asnumpy(), expected)
    # Parts of one array in one operation: MXNet's engine treats them as one variable.
    base = mx.nd.ones((4, 3))
    hvd.grouped_allreduce_([base[0:1], base[2:4]], op=hvd.Sum)
    assert base.asnumpy()[:, 0].tolist() == [size, 1, size, size]
    outs = hvd.grouped_allreduce([base, base], op=hvd.Max)
    assert [out.asnumpy().max() for out in outs] == [size, size]


@on_ranks(2)
def test_weighted_average():
    rank = hvd.rank()
    for dtype, tolerance in (("float64", 1e-12), ("float32", 1e-6), ("float16", 1e-2)):
        own = mx.nd.arange(6).reshape((2, 3)).astype(dtype) + rank
        for numbers in ([3, 5], [0, 2.5], [10**9, 10**8]):
            expected = np.arange(6).reshape(2, 3) + numbers[1] / sum(numbers)
            found = hvd.allreduce(own, weight=numbers[rank])
            assert found.dtype == np.dtype(dtype)
            np.testing.assert_allclose(found.asnumpy(), expected, rtol=tolerance)
    nothing = mx.nd.array([np.nan if rank == 0 else 2.0])
    assert hvd.allreduce(nothing, weight=rank).asnumpy() == [2.0]
    assert hvd.allreduce(nothing, weight=0).asnumpy() == [0.0]
    for options, message in (({"op": hvd.Sum}, "requires op=Average"), ({"prescale_factor": 2.0}, "must be 1.0 with")):
        with pytest.raises(ValueError, match=message):
            hvd.allreduce(nothing, weight=1, **options)
    with pytest.raises(ValueError, match="floating-point"):
        hvd.allreduce(mx.nd.ones(2, dtype="int32"), weight=1)


def test_fp16_casts_only_floats():
    integers = mx.nd.array([3], dtype="int32")
    for dtype in ("float32", "float64"):
        floats = mx.nd.array([1.5], dtype=dtype)
        for choice, name in ((hvd.Compression.fp16, "float16"), (hvd.Compression.bf16, "bfloat16")):
            small, context = choice.compress(floats)
            assert name in str(small.dtype), dtype
            back = choice.decompress(small, context)
            assert (back.dtype.__name__, back.asscalar()) == (dtype, 1.5)
    assert hvd.Compression.fp16.compress(integers) == (integers, None)
