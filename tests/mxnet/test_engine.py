"""Operations among MXNet's own: their dependencies, waiting, and order."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import horovod.mxnet as hvd
from tests.ranks import on_ranks


@on_ranks(2, 3)
def test_earlier_operations_on_the_same_arrays_are_awaited():
    """The program waits only at the end."""
    rank, size = hvd.rank(), hvd.size()
    a = mx.nd.ones((300, 300)) * (rank + 1)
    for _ in range(3):
        b = mx.nd.dot(a, a)  # may still run when the next line is executed
        hvd.allreduce_(b, op=hvd.Sum)
        b /= 300
        a = hvd.allreduce(b, op=hvd.Max) / b
    assert a.asnumpy().tolist() == np.ones((300, 300)).tolist()
    # Written repeatedly while earlier operations may be in flight, and read in between.
    x, seen = mx.nd.zeros((1000,)), []
    for step in range(50):
        x[:] = step + rank
        hvd.allreduce_(x, op=hvd.Sum, name="x")
        seen.append(x + 0)
        hvd.broadcast_(x, step % size, name="x")
    expected = [size * step + sum(range(size)) for step in range(50)]
    assert [float(one[0].asscalar()) for one in seen] == expected
    # Arrays that the program has released.
    total = mx.nd.zeros((1,))
    for step in range(50):
        total += hvd.allreduce(mx.nd.ones((1,)) * step, op=hvd.Sum)
    assert total.asscalar() == size * sum(range(50))


@on_ranks(2)
def test_operations_with_one_name_run_in_call_order():
    """Readiness may come in another order than the calls; here it differs between ranks."""
    rank, size = hvd.rank(), hvd.size()
    slow = mx.nd.ones((400, 400))
    for name in ("same", None):
        outs = []
        for i in range(20):
            late = mx.nd.dot(slow, slow)[0, :3] * 0 if (i + rank) % 2 else mx.nd.zeros((3,))
            outs.append(hvd.allreduce(late + i, op=hvd.Sum, name=name))
        assert [out.asnumpy().tolist() for out in outs] == [[i * size] * 3 for i in range(20)]
    outs = [hvd.allreduce(mx.nd.ones((1,)) * i, op=hvd.Sum) for i in range(600)]  # automatic names restart
    assert [out.asscalar() for out in outs] == [i * size for i in range(600)]


@on_ranks(2)
def test_an_input_that_failed():
    """MXNet skips operations that read a failed array; the rank must still continue like the others."""
    for _ in range(2):
        bad = mx.nd.random.normal(0, -1, (3,))  # rejected when it runs
        out = hvd.allreduce(bad, name="x")
        later = hvd.allreduce(mx.nd.ones((3,)), name="x", op=hvd.Sum)
        assert later.asnumpy().tolist() == [hvd.size()] * 3
        with pytest.raises(mx.base.MXNetError, match="scale"):  # reported once, to the first waiter
            out.wait_to_read()
    gathered = hvd.allgather(mx.nd.random.normal(0, -1, (3,)))
    for _ in range(2):
        with pytest.raises(mx.base.MXNetError, match="scale"):
            gathered.asnumpy()


@on_ranks(2)
def test_arrays_in_the_order_of_onednn():
    """oneDNN stores weights and images in its own layouts."""
    rank, size = hvd.rank(), hvd.size()
    mx.random.seed(1 + rank)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(32, 3, in_channels=16), gluon.nn.Conv2D(64, 3, in_channels=32))
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True)
    images = mx.nd.random.normal(shape=(4, 16, 12, 12))
    for _ in range(3):
        net(images).wait_to_read()  # not recorded: weights are converted to the preferred layout
    hvd.broadcast_parameters(net.collect_params(), root_rank=1)
    weights = [param.data().asnumpy() for _, param in sorted(net.collect_params().items())]
    for other in hvd.allgather_object(weights):
        for own, twin in zip(weights, other, strict=True):
            np.testing.assert_array_equal(own, twin)
    # An image that is the direct output of a convolution.
    image = mx.nd.Convolution(images, net[0].weight.data(), net[0].bias.data(), kernel=(3, 3), num_filter=32)
    expected = np.sum(hvd.allgather_object(image.copy().asnumpy()), 0)
    for operation in (hvd.allreduce, hvd.allreduce_):
        image = mx.nd.Convolution(images, net[0].weight.data(), net[0].bias.data(), kernel=(3, 3), num_filter=32)
        np.testing.assert_allclose(operation(image, op=hvd.Sum).asnumpy(), expected, 1e-4, 1e-4)
    image = mx.nd.Convolution(images, net[0].weight.data(), net[0].bias.data(), kernel=(3, 3), num_filter=32)
    assert hvd.allgather(image).shape == (4 * size, 32, 10, 10)
