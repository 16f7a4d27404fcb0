"""DistributedTrainer trains like one process on all ranks' data."""

import warnings

import mxnet as mx
import pytest

import horovod.mxnet as hvd
from tests.mxnet.training import alone, assert_close, backward, batch, make_net, weights
from tests.ranks import on_ranks

STEPS = 5
SGD = ("sgd", {"learning_rate": 0.1, "momentum": 0.9})


def train(trainer_options, optimizer=SGD, hybridize=False, group=None):
    ranks = group or range(hvd.size())
    net = make_net(1 + hvd.rank())
    if hybridize:
        net.hybridize()
    params = net.collect_params()
    hvd.broadcast_parameters(params, root_rank=0)
    trainer = hvd.DistributedTrainer(params, optimizer[0], dict(optimizer[1]), **trainer_options)
    for step in range(STEPS):
        backward(net, *batch(hvd.rank(), step))
        trainer.step(4)
    return weights(net), ranks


CASES = {
    "plain": {},
    "predivide": {"gradient_predivide_factor": 2.0},
    "groups": {"num_groups": 2},
    "more groups than gradients": {"num_groups": 9},
    "prefix": {"prefix": "first."},
}


def cases(names):
    for optimizer in (SGD, ("adam", {"learning_rate": 0.01})):
        expected = alone(range(hvd.size()), STEPS, *optimizer)
        for name in names:
            for hybridize in (False, True):
                assert_close(train(CASES[name], optimizer, hybridize)[0], expected)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_training_equals_one_process(pool, size):
    pool(size).run(cases, list(CASES))


@on_ranks(2)
def test_compression():
    expected = alone(range(hvd.size()), STEPS, *SGD)
    for choice in ("fp16", "bf16", "wire_fp16", "wire_bf16", "wire_int8"):
        for groups in (0, 2):
            options = {"compression": getattr(hvd.Compression, choice), "num_groups": groups}
            found = train(options)[0]
            assert_close(found, expected, 0.05)
            for other in hvd.allgather_object(found):
                assert_close(found, other, 0)
    seen = []

    class CustomCompression:
        @staticmethod
        def compress(tensor):
            seen.append(tensor.shape)
            return tensor * 2, tensor.shape

        @staticmethod
        def decompress(tensor, ctx):
            assert tensor.shape == ctx
            return tensor / 2

    assert_close(train({"compression": CustomCompression})[0], expected)
    assert len(seen) == 4 * STEPS


@on_ranks(3, HOROVOD_DYNAMIC_PROCESS_SETS="1")
def test_a_process_set():
    both = hvd.add_process_set([0, 2])
    found, _ = train({"process_set": both})
    # The broadcast gave all ranks rank 0's weights; rank 1 continues alone.
    if hvd.rank() == 1:
        assert_close(found, alone([1], STEPS, *SGD))
    else:
        assert_close(found, alone([0, 2], STEPS, *SGD))


@on_ranks(2)
def test_models_of_other_names_and_shapes():
    rank = hvd.rank()
    for _ in range(5 * rank):
        make_net(9)  # names of later layers, and their order as text, differ between ranks
    net = make_net(1, deferred=True)
    params = net.collect_params()
    trainer = hvd.DistributedTrainer(params, *SGD)
    hvd.broadcast_parameters(params, root_rank=0)
    for step in range(2):
        backward(net, *batch(rank, step))
        trainer.step(4)
    for other in hvd.allgather_object(weights(net)):
        assert_close(weights(net), other, 0)
    # A gradient of another shape.
    net = make_net(1, outputs=3 + rank)
    trainer = hvd.DistributedTrainer(net.collect_params(), *SGD)
    backward(net, *batch(0, 0))
    trainer.step(4)
    with pytest.raises(hvd.HorovodInternalError, match=r"allreduce.gradient\.dense1_(weight|bias).*shape"):
        mx.nd.waitall()


def test_a_distributed_optimizer_is_unwrapped(single):
    net = make_net(1)
    plain = mx.optimizer.SGD(learning_rate=0.3)
    with pytest.warns(UserWarning, match="DistributedTrainer averages gradients itself") as caught:
        trainer = hvd.DistributedTrainer(net.collect_params(), hvd.DistributedOptimizer(plain))
    assert caught[0].filename == __file__
    assert trainer.optimizer is plain
    assert trainer.learning_rate == 0.3
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        hvd.DistributedTrainer(net.collect_params(), plain)


def test_parameters_on_several_devices_are_refused(single):
    net = mx.gluon.nn.Dense(2, in_units=2)
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    with pytest.raises(ValueError, match=r"the parameters must be on one device per process, got 2 devices"):
        hvd.DistributedTrainer(net.collect_params(), "sgd")
    with pytest.raises(ValueError, match=r"dense\d+_bias must be on one device per process, got 2 devices"):
        hvd.broadcast_parameters(net.collect_params())


@on_ranks(2)
def test_sparse_gradients_are_refused():
    net = mx.gluon.nn.Embedding(5, 2, sparse_grad=True)
    net.initialize()
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
    with mx.autograd.record():
        loss = net(mx.nd.array([1, 2])).sum()
    loss.backward()
    with pytest.raises(ValueError, match="must have the storage type default, got row_sparse"):
        trainer.step(2)
