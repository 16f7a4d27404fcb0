"""ShardedOptimizer: equal to DistributedOptimizer bit for bit, state that loads anywhere, and refusals."""

import copy
import os
import signal
import tempfile
import time
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import horovod.torch as hvd
from horovod.torch.sharded import gathers
from horovod.torch.sharded.shards import Item, make_layouts, segments
from tests.ranks import on_ranks
from tests.runner.launching import eventually
from tests.torch.test_backward_errors import Raises

MAKERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
}


class Net(torch.nn.Module):
    """Sizes that no number of ranks divides, a tied, a frozen and an unused parameter."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = torch.nn.Linear(5, 7), torch.nn.Linear(7, 5)
        self.tied = self.first
        self.scale = torch.nn.Parameter(torch.tensor(1.5))  # without dimensions
        self.unused = torch.nn.Parameter(torch.ones(3))
        self.frozen = torch.nn.Parameter(torch.ones(5), requires_grad=False)

    def forward(self, x):
        y = torch.tanh(self.first(x)) + self.scale * self.tied(x)
        return torch.nn.functional.linear(y, self.second.weight, self.second.bias) * self.frozen  # not second(y)


def groups_of(net):
    decay = [p for p in net.parameters() if p.dim() > 1]
    return [{"params": decay}, {"params": [p for p in net.parameters() if p.dim() <= 1], "weight_decay": 0.0}]


def batch(number):
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(100 * number + hvd.rank()))


def train(net, optimizer, numbers, passes=1):
    for number in numbers:
        optimizer.zero_grad()
        for i in range(passes):
            net(batch(number + 50 * i)).square().mean().backward()
        optimizer.step()


def both(make, passes=1, overlap=False, nets=None):
    nets = nets or (Net(), Net())
    optimizers = [make(groups_of(net)) for net in nets]
    arguments = nets[0].named_parameters(), hvd.Compression.none, passes
    with mock.patch.object(make_layouts, "__defaults__", (60,)):  # several buckets
        sharded = hvd.ShardedOptimizer(optimizers[0], *arguments, overlap=nets[0] if overlap else None)
    return nets, (
        sharded,
        hvd.DistributedOptimizer(optimizers[1], nets[1].named_parameters(), hvd.Compression.none, passes),
    )


def assert_equal(nets):
    for (name, a), b in zip(nets[0].named_parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(a, b), name
    own = torch.cat([p.detach().reshape(-1) for p in nets[0].parameters()])
    assert all(torch.equal(own, other) for other in hvd.allgather_object(own))


def test_every_element_belongs_to_one_rank():
    items = [Item("a", size, 4) for size in (7, 1, 30, 2)] + [Item("b", 5, 2)]
    for ranks in (1, 2, 3, 4, 100):
        layouts = make_layouts(items, ranks, bucket_bytes=40)
        owned = [
            (s.index, element)
            for layout in layouts
            for rank in range(ranks)
            for s in segments(layout, [item.size for item in items], rank)
            for element in range(s.start, s.stop)
        ]
        assert sorted(owned) == [(i, element) for i, item in enumerate(items) for element in range(item.size)]


@pytest.mark.parametrize("overlap", [False, True])
@on_ranks(2)
def test_training_equals_distributed_optimizer(overlap):
    nets, optimizers = both(MAKERS["adamw"], overlap=overlap)
    for net, optimizer in zip(nets, optimizers, strict=True):
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        train(net, optimizer, [1])
        schedule.step()
        net.frozen.requires_grad_(True)
        train(net, optimizer, [2, 3])
    assert_equal(nets)
    assert len(optimizers[0].state) < 2 * len(list(nets[0].parameters()))

    # The state moves in both directions.
    with tempfile.TemporaryDirectory() as folder:
        full, plain = optimizers[0].state_dict(folder), optimizers[1].state_dict()
        assert not list(Path(folder).iterdir())
    if hvd.rank() == 0:
        expected = {id(p): s for p, s in optimizers[1].state.items()}
        for name, p in nets[1].named_parameters():
            assert set(full["state"].get(name, {})) == set(expected.get(id(p), {}))
            for key, value in expected.get(id(p), {}).items():
                assert torch.equal(full["state"][name][key], value), (name, key)
    full = hvd.broadcast_object(full)
    optimizers[1].load_state_dict(full)
    optimizers[0].load_state_dict(plain)
    for net, optimizer in zip(nets, optimizers, strict=True):
        train(net, optimizer, [4])
    assert_equal(nets)


READS = {
    "forward": lambda net, x: net(x),
    "recurrent": lambda net, x: net(x)[0],
    "compiled": lambda net, x: torch.compile(net, backend="eager")(x),
    "copy": lambda net, x: copy.deepcopy(net)(x),
    "state": lambda net, x: torch.cat([value.reshape(-1) for value in net.state_dict().values()]),
    "end": lambda net, x: hvd.shutdown() or net(x),
}


@pytest.mark.parametrize("read", READS)
@on_ranks(2, initialized=False)
def test_parameters_are_read_while_they_are_gathered(read, tmp_path):
    hvd.init()
    torch.manual_seed(3)
    net = torch.nn.RNN(5, 7) if read == "recurrent" else Net()
    nets, optimizers = both(MAKERS["adam"], overlap=True, nets=(net, copy.deepcopy(net)))
    x, started = batch(1), tmp_path / "begun"
    for net, optimizer in reversed(list(zip(nets, optimizers, strict=True))):
        READS["recurrent" if read == "recurrent" else "forward"](net, x).sum().backward()
        if hvd.rank() == 1 and net is nets[0]:  # this rank gathers when the other one reads
            optimizer.register_step_post_hook(lambda *_: eventually(started.exists, 60, "step() returns early"))
        optimizer.step()
        optimizer.zero_grad()
    if read in ("forward", "recurrent"):
        nets[0].register_forward_pre_hook(lambda *_: started.touch(), prepend=True)
    else:
        started.touch()
    assert torch.equal(*(READS[read](net, x) for net in nets))
    gathers._compiled = False
    hvd.shutdown()


@on_ranks(2)
def test_refusals():
    net = Net()
    plain, scheduled = (torch.optim.SGD(net.parameters(), lr=0.1) for _ in range(2))
    torch.optim.lr_scheduler.StepLR(scheduled, 1)
    optimizer = hvd.ShardedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    state = hvd.elastic.TorchState(model=net, optimizer=optimizer)
    for match, wrong in {
        "must update .* independently, got LBFGS": lambda: hvd.ShardedOptimizer(torch.optim.LBFGS(net.parameters())),
        "before its learning rate scheduler": lambda: hvd.ShardedOptimizer(scheduled),
        "already": lambda: hvd.ShardedOptimizer(optimizer),
        "each rank has a different part of a hvd.Sh": lambda: hvd.broadcast_optimizer_state(optimizer, root_rank=0),
        "state_dict must not be called for a state with a": state.state_dict,
        "Optimizer: compression must": lambda: hvd.ShardedOptimizer(plain, None, hvd.Compression.wire_fp16),
        "overlap must be a torch.nn.Module": lambda: hvd.ShardedOptimizer(plain, overlap=True),
    }.items():
        with pytest.raises(ValueError, match=match):
            wrong()
    net(batch(1)).sum().backward()
    with pytest.raises(RuntimeError, match="after its gradients were reduced"):
        net(batch(2)).sum().backward()
    optimizer.zero_grad()
    net.double()
    with pytest.raises(RuntimeError, match="memory was replaced"):
        optimizer.step()


@on_ranks(2)
def test_backward_fails_on_one_rank():
    nets, optimizers = both(MAKERS["momentum"], passes=2)
    net, optimizer = nets[0], optimizers[0]
    for number, go_on in enumerate((lambda: None, optimizer.zero_grad, lambda: hvd.allreduce(torch.ones(1)))):
        net(batch(number)).sum().backward()
        Raises.count = int(hvd.rank() == 1)
        error, text = (LookupError, "raised in backward") if Raises.count else (hvd.HorovodInternalError, "on rank 1")
        with pytest.raises(error, match=text):
            net.second(Raises.apply(net.first(batch(number)))).sum().backward()
        go_on()
        for one, other in zip(nets, optimizers, strict=True):
            train(one, other, [number], passes=2)
    assert_equal(nets)


@on_ranks(2)
def test_reentrant_checkpoint_and_compression():
    nets = Net(), Net()
    for net, wrap in zip(nets, (hvd.ShardedOptimizer, hvd.DistributedOptimizer), strict=True):
        optimizer = wrap(MAKERS["momentum"](groups_of(net)), net.named_parameters(), hvd.Compression.fp16)
        for number in range(2):
            x = batch(number).requires_grad_(True)
            net.second(checkpoint(lambda y, net=net: net.first(y).tanh(), x, use_reentrant=True)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(list(nets[0].parameters()), list(nets[1].parameters()))


def loses_a_rank(marker, overlap):
    (net, _), (optimizer, _) = both(MAKERS["momentum"], overlap=overlap)
    train(net, optimizer, [1])

    def die(*_):
        marker.write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)

    if hvd.rank() == 2:
        optimizer.register_step_post_hook(die) if overlap else net.scale.register_post_accumulate_grad_hook(die)
    with pytest.raises(hvd.HorovodInternalError) as error:
        train(net, optimizer, [2, 3])
    optimizer.zero_grad(), net.state_dict()  # raise no second error
    return str(error.value), time.time()


@pytest.mark.heavy
@pytest.mark.parametrize("overlap", [False, True])
def test_a_rank_is_lost_during_a_step(pool, tmp_path, overlap):
    results = pool(3).run(loses_a_rank, tmp_path / "ended", overlap, errors=True)
    for message, noticed in results[:2]:
        assert "rank 2" in message
        assert noticed - float((tmp_path / "ended").read_text()) < 10, "far less than the timeout of collectives"


@pytest.mark.heavy
@pytest.mark.parametrize("make", MAKERS)
@on_ranks(2, 3, 4)
def test_optimizers(make):
    nets, optimizers = both(MAKERS[make], passes=2)
    for net, optimizer in zip(nets, optimizers, strict=True):
        train(net, optimizer, range(4), passes=2)
    assert_equal(nets)


@pytest.mark.heavy
@on_ranks(3)
def test_clipping_and_overflow_on_one_rank():
    nets, optimizers = both(MAKERS["momentum"])
    norms = []
    for net, optimizer in zip(nets, optimizers, strict=True):
        net(batch(1)).square().mean().backward()
        clip = getattr(
            optimizer, "clip_grad_norm_", lambda norm, net=net: torch.nn.utils.clip_grad_norm_(net.parameters(), norm)
        )
        norms.append(clip(0.01))
        optimizer.step()
    torch.testing.assert_close(norms[0].float(), norms[1])
    torch.testing.assert_close(list(nets[0].parameters()), list(nets[1].parameters()))

    net, optimizer = nets[0], optimizers[0]
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    loss = net(batch(2)).square().mean() * (float("inf") if hvd.rank() == 1 else 1.0)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 4.0  # on every rank
    assert all(torch.equal(before[name], p) for name, p in net.named_parameters())
    optimizer.zero_grad()
    scaler.scale(net(batch(3)).square().mean()).backward()
    scaler.step(optimizer)
    assert not torch.equal(before["first.weight"], net.first.weight)


@pytest.mark.heavy
@on_ranks(4, HOROVOD_DYNAMIC_PROCESS_SETS="1")
def test_process_set_and_different_numbers_of_ranks():
    half, saved = hvd.add_process_set([1, 3]), None
    if hvd.rank() in (1, 3):
        nets = Net(), Net()
        small = hvd.ShardedOptimizer(MAKERS["adam"](nets[0].parameters()), nets[0].named_parameters(), process_set=half)
        train(nets[0], small, range(3))
        saved = small.state_dict()
    saved = hvd.broadcast_object(saved, root_rank=1)
    assert saved["state"]["first.weight"]["exp_avg"].shape == (7, 5)
    net = Net()
    optimizer = hvd.ShardedOptimizer(MAKERS["adam"](net.parameters()), net.named_parameters())
    optimizer.load_state_dict(saved)
    again = hvd.broadcast_object(optimizer.state_dict())
    for name, entries in saved["state"].items():
        for key, value in entries.items():
            assert torch.equal(value, again["state"][name][key])
    hvd.remove_process_set(half)
