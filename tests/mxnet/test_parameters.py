"""broadcast_parameters: dicts, parameters, parameters without a shape yet, and objects."""

import mxnet as mx
import numpy as np
import pytest

import horovod.mxnet as hvd
from tests.mxnet.training import batch, make_net, weights
from tests.ranks import on_ranks


def equal(found):
    for remote in hvd.allgather_object(found):
        for one, other in zip(found, remote, strict=True):
            np.testing.assert_array_equal(one, other)


@on_ranks(2)
def test_dicts_and_parameters():
    rank, size = hvd.rank(), hvd.size()
    for root in range(size):
        params = {
            f"{dtype}{i}": mx.nd.ones((i + 1,), dtype=dtype) * rank for i in range(3) for dtype in ("int32", "float16")
        }
        passed = dict(params) if rank else dict(reversed(params.items()))  # in another order
        assert hvd.broadcast_parameters(passed, root_rank=root, prefix=f"root{root}.") is None
        assert all((param.asnumpy() == root).all() for param in params.values())
    hvd.broadcast_parameters({})
    net = make_net(rank)
    hvd.broadcast_parameters(net.collect_params(), 1)
    equal(weights(net))
    net = make_net(rank)
    hvd.broadcast_parameters(dict(net.collect_params()), 1, prefix="a dict ")
    equal(weights(net))


@on_ranks(2)
def test_non_string_keys():
    passed = {key: mx.nd.full((2,), 10 * hvd.rank() + value) for value, key in enumerate((0, 10, ("a", 1), "b"))}
    hvd.broadcast_parameters(passed, root_rank=1)
    assert [int(array.asnumpy()[0]) for array in passed.values()] == [10, 11, 12, 13]
    with pytest.raises(ValueError, match=r"got <object .*, whose text differs between ranks"):
        hvd.broadcast_parameters({object(): mx.nd.ones((1,))})
    with pytest.raises(ValueError, match=r"got two keys 1 \(on rank \d\)$"):
        hvd.broadcast_parameters({1: mx.nd.ones((1,)), "1": mx.nd.ones((1,))})


@on_ranks(2)
def test_deferred_parameters_are_broadcast_when_initialized():
    rank = hvd.rank()
    net = make_net(rank, deferred=True, normal=True)
    hvd.broadcast_parameters(net.collect_params(), root_rank=1)
    with pytest.raises(mx.gluon.parameter.DeferredInitializationError):
        net[0].weight.data()
    net(batch(rank, 0, (1, 5, 5))[0])
    equal(weights(net))
    # Only once: later changes are local to the rank.
    for param in net.collect_params().values():
        param.set_data(param.data() * 0 + rank)
    assert (net[0].weight.data().asnumpy() == rank).all()
    net.collect_params().reset_ctx(mx.cpu())
    with mx.autograd.record():
        loss = net(batch(rank, 0, (1, 5, 5))[0]).sum()
    loss.backward()


def test_parameters_that_are_not_initialised(single):
    net = mx.gluon.nn.Dense(2, in_units=2)
    with pytest.raises(ValueError, match=r"broadcast_parameters: .*has not been initialized"):
        hvd.broadcast_parameters(net.collect_params())
