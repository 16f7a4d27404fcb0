"""DistributedOptimizer in updaters and in Module."""

import pickle

import mxnet as mx
import numpy as np
import pytest

import horovod.mxnet as hvd
from tests.ranks import on_ranks


def updates(kind, options, wrapped, dtype="float32"):
    """Return weights after three updates, one at a time and all at once, with gradients that depend on the rank."""
    rank, size = hvd.rank(), hvd.size()
    optimizer = getattr(mx.optimizer, kind)(**options)
    updater = mx.optimizer.get_updater(hvd.DistributedOptimizer(optimizer, **wrapped))
    plain = mx.optimizer.get_updater(getattr(mx.optimizer, kind)(**options))
    weights, expected = ([mx.nd.ones((2, i + 1), dtype=dtype) for i in range(5)] for _ in range(2))
    for step in range(3):
        gradients = [
            [mx.nd.ones(w.shape, dtype=dtype) * (r + step + i) for i, w in enumerate(weights)] for r in range(size)
        ]
        means = [sum(parts[1:], parts[0]) / size for parts in zip(*gradients, strict=True)]
        if step % 2:
            for i in range(5):
                updater(i, gradients[rank][i], weights[i])
                plain(i, means[i], expected[i])
        else:
            updater(list(range(5)), gradients[rank], weights)
            plain(list(range(5)), means, expected)
    for one, other in zip(weights, expected, strict=True):
        np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), 1e-3 if dtype == "float16" else 1e-5)


@on_ranks(1, 2, 3)
def test_updates_equal_those_of_the_mean():
    for wrapped in ({}, {"gradient_predivide_factor": 4.0}, {"num_groups": 2}):
        updates("SGD", {"learning_rate": 0.1, "momentum": 0.9}, wrapped)
        updates("Adam", {"learning_rate": 0.1, "wd": 0.01}, wrapped)
    updates("SGD", {"learning_rate": 0.1, "multi_precision": True}, {}, "float16")


def test_the_wrapper_acts_as_the_optimizer(single):
    plain = mx.optimizer.SGD(learning_rate=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(plain)
    assert isinstance(optimizer, mx.optimizer.Optimizer)
    assert optimizer.momentum == 0.9
    optimizer.rescale_grad = 0.25
    optimizer.idx2name = {0: "weight"}
    optimizer.set_learning_rate(0.2)
    optimizer.set_lr_mult({0: 3.0})
    optimizer.set_wd_mult({0: 5.0})
    assert plain.rescale_grad == 0.25
    assert plain.idx2name == {0: "weight"}
    assert plain.learning_rate == optimizer.learning_rate == 0.2
    assert plain.lr_mult[0] == 3.0
    assert plain.wd_mult[0] == 5.0
    again = pickle.loads(pickle.dumps(optimizer))
    assert again.momentum == 0.9
    assert again.rescale_grad == 0.25
    with pytest.raises(ValueError, match="got a DistributedOptimizer"):
        hvd.DistributedOptimizer(optimizer)
    with pytest.raises(AttributeError, match="nothing"):
        optimizer.nothing  # noqa: B018
