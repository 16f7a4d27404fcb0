"""A small model, and its training by plain MXNet on all ranks' data."""

import mxnet as mx
import numpy as np
from mxnet import gluon


def make_net(seed, deferred=False, normal=False, outputs=3):
    """Return two dense layers, or with ``normal`` a convolution and a batch normalization before them.

    ``seed``: for the weights.
    """
    mx.random.seed(seed)
    np.random.seed(seed)
    net = gluon.nn.HybridSequential()
    known = {} if deferred else {"in_units": 6}
    if normal:
        net.add(gluon.nn.Conv2D(4, 2), gluon.nn.BatchNorm(), gluon.nn.Flatten())
    net.add(
        gluon.nn.Dense(8, activation="tanh", **known), gluon.nn.Dense(outputs, **({} if deferred else {"in_units": 8}))
    )
    net.initialize(mx.init.Xavier())
    return net


def batch(rank, step, shape=(6,)):
    random = np.random.RandomState(100 * step + rank)
    return mx.nd.array(random.randn(4, *shape)), mx.nd.array(random.randint(0, 3, 4))


LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


def backward(net, data, labels):
    with mx.autograd.record():
        loss = LOSS(net(data), labels)
    loss.backward()
    return loss


def weights(net):
    return [param.data().asnumpy() for param in net.collect_params().values()]  # sorted, dense10 is before dense9


def assert_close(some, expected, tolerance=1e-5):
    assert len(some) == len(expected)
    for one, other in zip(some, expected, strict=True):
        np.testing.assert_allclose(one, other, tolerance, tolerance)


def alone(ranks, steps, optimizer, options):
    """Return the weights after training in one process on the batches of all ``ranks``."""
    net = make_net(1)
    trainer = gluon.Trainer(net.collect_params(), optimizer, dict(options), kvstore=None)
    for step in range(steps):
        data, labels = zip(*(batch(rank, step) for rank in ranks), strict=True)
        backward(net, mx.nd.concat(*data, dim=0), mx.nd.concat(*labels, dim=0))
        trainer.step(4 * len(ranks))
    return weights(net)
