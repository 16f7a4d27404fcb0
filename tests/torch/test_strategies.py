"""Training strategies in jobs: identities with plain training, checkpoints, changes of the ranks."""

import copy
import sys

import numpy as np
import pytest
import torch

import horovod.torch as hvd
from horovod.strategies import OuterSGD
from tests.ranks import on_ranks
from tests.runner.elastic.launched import elastic_job
from tests.torch.programs import OPTIMIZERS, assert_all_equal, batch, loss_of, loss_of_all, network, train

DYNAMIC = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}


def flat(net):
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


def mean_of_ranks(net):
    return hvd.allreduce(flat(net), name="mean")


def synchronous(numbers, make=OPTIMIZERS["sgd"], loss=loss_of_all):
    """Return a network that one process has trained on the batches of all ranks."""
    net = network()
    optimizer = make(net.parameters())
    for number in numbers:
        optimizer.zero_grad()
        loss(net, number).backward()
        optimizer.step()
    return net


def wrapped(strategy, make=OPTIMIZERS["sgd"]):
    """Return (network, its optimizer with a strategy); as in every program, the weights are broadcast afterwards."""
    net = network(seed=3 + hvd.rank())
    optimizer = strategy(make(net.parameters()))
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    return net, optimizer


@on_ranks(2, **DYNAMIC)
def test_smoke():
    """One short run of each strategy: what equals synchronous training does, and all end with equal parameters."""
    reference = synchronous(range(3))
    for strategy in (
        lambda optimizer: hvd.LocalSGD(optimizer, every=1),
        lambda optimizer: hvd.DiLoCo(optimizer, OuterSGD(1.0, 0.0), every=1),
        hvd.Gossip,  # exact with two ranks
    ):
        net, optimizer = wrapped(strategy)
        train(net, optimizer, range(3))
        torch.testing.assert_close(flat(net), flat(reference))
    net, optimizer = wrapped(
        lambda optimizer: hvd.ParameterServer(optimizer, mode="async", staleness=0), OPTIMIZERS["momentum"]
    )
    if not optimizer.serve():
        train(net, optimizer, range(3))
        optimizer.finish()
    alone = synchronous(range(3), OPTIMIZERS["momentum"], lambda net, number: loss_of(net, batch(number, 0)))
    assert torch.equal(flat(net), flat(alone))  # bit for bit
    assert optimizer.strategy.histogram == {0: 3}
    assert_all_equal(net)


@pytest.mark.heavy
@pytest.mark.parametrize("make", ["sgd", "momentum"])
@on_ranks(3)
def test_averaging_after_every_step_equals_synchronous_training(make):
    """Averaging is linear, and so is SGD with momentum."""
    net, optimizer = wrapped(lambda one: hvd.LocalSGD(one, every=5, synchronous_steps=4), OPTIMIZERS[make])
    train(net, optimizer, range(4))
    torch.testing.assert_close(flat(net), flat(synchronous(range(4), OPTIMIZERS[make])))


@pytest.mark.heavy
@on_ranks(3)
def test_local_sgd_averages_the_local_models():
    net, alone = network(), network()
    train(alone, OPTIMIZERS["adam"](alone.parameters()), range(4))
    average = mean_of_ranks(alone)
    train(net, hvd.LocalSGD(OPTIMIZERS["adam"](net.parameters()), every=4), range(4))
    torch.testing.assert_close(flat(net), average)
    assert_all_equal(net)


@pytest.mark.heavy
@on_ranks(4, **DYNAMIC)
def test_synchronous_within_hosts_and_local_between_them():
    hosts = [hvd.add_process_set([0, 1]), hvd.add_process_set([2, 3])]
    own = hosts[hvd.rank() // 2]
    net, reference = network(), network()
    inner = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](net.parameters()), process_set=own)
    train(net, hvd.LocalSGD(inner, every=3), range(3))
    optimizer = OPTIMIZERS["sgd"](reference.parameters())
    for number in range(3):
        optimizer.zero_grad()
        (sum(loss_of(reference, batch(number, r)) for r in own.ranks) / 2).backward()
        optimizer.step()
    torch.testing.assert_close(flat(net), mean_of_ranks(reference))
    for one in hosts:
        hvd.remove_process_set(one)


@pytest.mark.heavy
@pytest.mark.parametrize("fragments", [1, 2, 4])
@pytest.mark.parametrize("overlap", [0, 1])
@on_ranks(2)
def test_fragments_and_overlap_exchange_everything(fragments, overlap):
    """Random shapes: after a round without further change, every element has been exchanged exactly once."""
    generator = torch.Generator().manual_seed(fragments)
    shapes = [tuple(torch.randint(1, 6, (2,), generator=generator).tolist()) for _ in range(5)]
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    optimizer = hvd.DiLoCo(
        torch.optim.SGD(parameters, lr=1.0), OuterSGD(1.0, 0.0), every=8, fragments=fragments, overlap=overlap
    )
    for step in range(8 + overlap):
        for p in parameters:
            p.grad = torch.full_like(p, -1.0 - hvd.rank() if step == 0 else 0.0)
        optimizer.step()
    assert all((p == 1.5).all() for p in parameters)


@pytest.mark.heavy
@on_ranks(2)
def test_a_checkpoint_within_a_round_resumes_exactly(tmp_path):
    def make(net):
        return hvd.DiLoCo(OPTIMIZERS["adam"](net.parameters()), every=4, fragments=2, overlap=1)

    whole = network()
    train(whole, make(whole), range(9))
    first = network()
    optimizer = make(first)
    train(first, optimizer, range(6))  # a fragment is in flight
    path = tmp_path / f"{hvd.rank()}.pt"
    torch.save({"model": first.state_dict(), "optimizer": optimizer.state_dict()}, path)
    second = network(seed=9)
    optimizer = make(second)
    saved = torch.load(path, weights_only=True)
    second.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    train(second, optimizer, range(6, 9))
    assert torch.equal(flat(second), flat(whole))


@pytest.mark.heavy
@pytest.mark.parametrize("graph", ["exponential", "ring", "pairs"])
@on_ranks(3, 4)
def test_gossip_conserves_the_mean(graph):
    net, alone = network(), network()
    optimizer = hvd.Gossip(OPTIMIZERS["sgd"](net.parameters()), graph, push_sum=graph == "ring")
    train(net, optimizer, range(1))
    train(alone, OPTIMIZERS["sgd"](alone.parameters()), range(1))
    torch.testing.assert_close(mean_of_ranks(net), mean_of_ranks(alone))
    for p in net.parameters():
        p.grad = None
    for _ in range(60):
        optimizer.step()  # mixes only
    torch.testing.assert_close(flat(net), mean_of_ranks(alone))


@pytest.mark.heavy
@pytest.mark.parametrize("wire", [None, "fp16"])
@on_ranks(3)
def test_push_sum_corrects_an_unequal_graph(wire):
    def star(size, number):
        return [list(range(1, size)), *([0] for _ in range(size - 1))]

    value = torch.nn.Parameter(torch.zeros(5))
    optimizer = hvd.Gossip(torch.optim.SGD([value], lr=1.0), star, wire=wire)
    value.grad = torch.full((5,), -3.0 * hvd.rank())
    optimizer.step()
    value.grad = None
    for _ in range(60):
        optimizer.step()
    weights = hvd.allreduce(torch.tensor([optimizer.strategy.weight]), op=hvd.Sum, name="weights")
    torch.testing.assert_close(weights, torch.tensor([3.0]))
    assert optimizer.strategy.weight != 1
    # The sum of weighted values is conserved: 3 ranks, 0 + 3 + 6.
    total = hvd.allreduce(value.detach() * optimizer.strategy.weight, op=hvd.Sum, name="total")
    torch.testing.assert_close(total, torch.full((5,), 9.0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(value.detach(), torch.full((5,), 3.0), rtol=1e-2 if wire else 1e-5, atol=1e-4)


@pytest.mark.heavy
@pytest.mark.parametrize("make", ["momentum", "adam"])
@pytest.mark.parametrize("servers", [1, 2])
@on_ranks(4, **DYNAMIC)
def test_a_synchronous_parameter_server_equals_synchronous_training(make, servers):
    net, optimizer = wrapped(lambda one: hvd.ParameterServer(one, servers), OPTIMIZERS[make])
    if not optimizer.serve():
        train(net, optimizer, range(5))
        optimizer.finish()
    workers = 4 - servers
    reference = synchronous(
        range(5),
        OPTIMIZERS[make],
        lambda net, number: sum(loss_of(net, batch(number, r)) for r in range(workers)) / workers,
    )
    torch.testing.assert_close(flat(net), flat(reference))
    assert_all_equal(net)


@pytest.mark.heavy
@on_ranks(2, **DYNAMIC)
def test_a_worker_saves_a_state_that_the_plain_optimizer_loads():
    net, plain = network(), network()
    optimizer = hvd.ParameterServer(OPTIMIZERS["adam"](net.parameters()))
    reference = OPTIMIZERS["adam"](plain.parameters())
    if not optimizer.serve():
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        train(net, optimizer, range(2))
        scheduler.step()
        state = copy.deepcopy(optimizer.state_dict())
        train(net, optimizer, range(2, 4))
        optimizer.finish()
        plain.load_state_dict({k: v.clone() for k, v in network().state_dict().items()})
        first = OPTIMIZERS["adam"](plain.parameters())
        train(plain, first, range(2))
        reference.load_state_dict(state)
        train(plain, reference, range(2, 4))
        assert torch.equal(flat(net), flat(plain))


@pytest.mark.heavy
@on_ranks(3, **DYNAMIC)
def test_a_slow_worker_bounds_staleness_and_workers_may_end_early():
    net = network()
    optimizer = hvd.ParameterServer(OPTIMIZERS["sgd"](net.parameters()), mode="async", staleness=2)
    if not optimizer.serve():
        train(net, optimizer, range(3 if hvd.rank() else 12))
        optimizer.finish()
    assert sum(optimizer.strategy.histogram.values()) == 15
    assert_all_equal(net)


@pytest.mark.heavy
@on_ranks(3, **DYNAMIC)
def test_elastic_averaging_keeps_the_sum():
    value = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer = hvd.ParameterServer(torch.optim.SGD([value], lr=1.0), mode="easgd", every=2, rate=0.25)
    own = 0.0
    if not optimizer.serve():
        for _ in range(2):
            value.grad = torch.full_like(value, -1.0 - hvd.rank())
            optimizer.step()
        own = value.detach()[0].item()
        optimizer.finish()
    total = sum(hvd.allgather_object(own)) + value.detach()[0].item()
    assert total == pytest.approx(2 * 1 + 2 * 2)  # all local steps


@pytest.mark.heavy
@on_ranks(2)
def test_the_round_restarts_when_ranks_change():
    """What an elastic state does after a change: rank 0 has trained, the others are new."""
    net = network()
    optimizer = hvd.DiLoCo(OPTIMIZERS["sgd"](net.parameters()), every=3)
    train(net, optimizer, range(4))
    shared = optimizer.strategy.common()["shared"].clone()
    velocity = optimizer.strategy.common()["velocity"].clone()
    if hvd.rank():  # a new process
        net = network(seed=8)
        optimizer = hvd.DiLoCo(OPTIMIZERS["sgd"](net.parameters()), every=3)
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.strategy.steps == 3
    assert torch.equal(flat(net), shared)
    assert torch.equal(optimizer.strategy.common()["velocity"], velocity)
    train(net, optimizer, range(4, 7))
    assert_all_equal(net)


@pytest.mark.heavy
@pytest.mark.parametrize("strategy", ["LocalSGD", "Gossip"])
@on_ranks(2)
def test_an_elastic_state_keeps_the_strategy(strategy):
    net = network()
    plain = OPTIMIZERS["adam"](net.parameters())
    optimizer = hvd.LocalSGD(plain, every=4) if strategy == "LocalSGD" else hvd.Gossip(plain)
    state = hvd.elastic.TorchState(model=net, optimizer=optimizer, step=0)
    state.sync()
    train(net, optimizer, range(2))
    state.commit()
    committed = flat(net)
    train(net, optimizer, range(2, 3))
    state.restore()
    assert optimizer.strategy.steps == 2
    assert torch.equal(flat(net), committed)
    state.sync()
    assert_all_equal(net)
    assert optimizer.strategy.steps == (0 if strategy == "LocalSGD" else 2)


# Every worker has the same batches, so each strategy must equal the plain optimizer, whichever rank is killed.
ELASTIC = """
import os, signal, sys, torch, horovod.torch as hvd
from tests.torch.programs import OPTIMIZERS, batch, network
from horovod.strategies import OuterSGD
hvd.init(process_sets="dynamic")
net, twin = network(), network()
plain, optimizer = OPTIMIZERS["momentum"](twin.parameters()), OPTIMIZERS["momentum"](net.parameters())
optimizer = eval(sys.argv[1])(optimizer)
@hvd.elastic.run
def run(state):
    if hasattr(optimizer, "serve") and optimizer.serve(): return
    while state.step < 20:
        if state.step == 9 and os.environ["HOROVOD_WORKER"] == sys.argv[2]:
            os.kill(os.getpid(), signal.SIGKILL)
        for model, one in (net, optimizer), (twin, plain):
            one.zero_grad()
            model(batch(state.step, 0)).square().mean().backward()
            one.step()
        state.step += 1
        if state.step % 5 == 0:
            state.commit()
    if hasattr(optimizer, "serve"): optimizer.finish()
    assert all(torch.allclose(p, q, rtol=1e-4, atol=1e-6) for p, q in zip(net.parameters(), twin.parameters()))
    print("equal", flush=True)
run(hvd.elastic.TorchState(net, optimizer, twin=twin, plain=plain, step=0))
"""


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("victim", "strategy"),
    [("1", "LocalSGD(o, 5)"), ("0", "DiLoCo(o, OuterSGD(1, 0), 5)"), ("1", "Gossip(o)"), ("0", "ParameterServer(o)")],
)
def test_a_killed_rank(tmp_path, victim, strategy):
    flags = ["-np", "3", "--min-np", "2", sys.executable, "-c", ELASTIC, f"lambda o: hvd.{strategy}", victim]
    with elastic_job(tmp_path, "localhost:3", *flags) as job:
        assert job.end() == 0, job.shown()
        assert job.shown().count("equal") == 2 - ("Server" in strategy), job.shown()


@pytest.mark.heavy
@on_ranks(2)
def test_arrays():
    from horovod.strategies import arrays

    for strategy in (
        lambda a: arrays.LocalSGD(a, every=1),
        lambda a: arrays.DiLoCo(a, OuterSGD(1.0, 0.0), every=1, wire="fp16"),
        arrays.Gossip,
    ):
        values = [np.zeros((2, 3), np.float32), np.zeros(2, np.float32)]
        one = strategy(values)
        for _ in range(2):
            one.before_step()
            for array in values:
                array += hvd.rank()
            one.after_step()
        assert all((array == 1).all() for array in values)
    with pytest.raises(ValueError, match="C-contiguous"):
        arrays.Gossip([np.zeros((2, 3)).T])


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda o: hvd.LocalSGD(o, every=0), "every"),
        (lambda o: hvd.LocalSGD(o, every=1, wire="fp8"), "wire"),
        (lambda o: hvd.LocalSGD(o, every=1, wire="int8"), "wire must be None for float64"),
        (lambda o: hvd.LocalSGD(hvd.LocalSGD(o, 1), 1), "strategy already"),
        (lambda o: hvd.DiLoCo(o, outer=0.7), "outer"),
        (lambda o: hvd.DiLoCo(o, mixing=1.0), "mixing"),
        (lambda o: hvd.Gossip(o, "star"), "graph"),
        (lambda o: hvd.Gossip(o, every=True), "every"),
        (lambda o: hvd.ParameterServer(o, servers=0), "servers"),
        (lambda o: hvd.ParameterServer(o, mode="ssp"), "mode"),
        (lambda o: hvd.ParameterServer(o, every=2), "every must be 1"),
        (lambda o: hvd.ParameterServer(o, rate=1.5), "rate"),
        (lambda o: hvd.ParameterServer(o, timeout=0), "timeout"),
        (lambda o: hvd.Gossip(3), "optimizer must be"),
    ],
)
def test_invalid_arguments(single, make, named):
    with pytest.raises(ValueError, match=named):
        make(OPTIMIZERS["sgd"](network().parameters()))


def test_a_single_rank_trains_as_with_the_plain_optimizer(single):
    nets = [network() for _ in range(3)]
    train(nets[0], OPTIMIZERS["adam"](nets[0].parameters()), range(3))
    train(nets[1], hvd.LocalSGD(OPTIMIZERS["adam"](nets[1].parameters()), 1), range(3))
    train(nets[2], hvd.Gossip(OPTIMIZERS["adam"](nets[2].parameters()), "pairs"), range(3))
    torch.testing.assert_close(flat(nets[1]), flat(nets[0]))
    assert torch.equal(flat(nets[2]), flat(nets[0]))
    assert type(copy.copy(hvd.Gossip(OPTIMIZERS["sgd"](nets[0].parameters())))) is torch.optim.SGD
