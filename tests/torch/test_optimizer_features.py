"""The corners of DistributedOptimizer: parameters without gradients, sparse ones, several optimizers, wrong use,
identity."""

import copy
import gc
import pickle
import warnings

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, StepLR

import horovod.torch as hvd


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.branches = torch.nn.ModuleList(torch.nn.Linear(2, 1, bias=False) for _ in range(4))

    def forward(self, x, used):
        return sum(self.branches[i](x).sum() for i in used)


def unused(groups, set_to_none):
    net = Branches()
    sgd = torch.optim.SGD(net.parameters(), lr=1.0, weight_decay=0.1)
    optimizer = hvd.DistributedOptimizer(sgd, net.named_parameters(), groups=groups)
    x = torch.ones(1, 2)
    n = hvd.size()
    for step in range(5):
        before = [b.weight.detach().clone() for b in net.branches]
        optimizer.zero_grad(set_to_none=set_to_none)
        # Branch 0 is used by all, 1 by rank 0 alone, 2 by the last rank every other step, 3 by nobody.
        used = [0]
        if hvd.rank() == 0:
            used.append(1)
        if hvd.rank() == n - 1 and step % 2:
            used.append(2)
        net(x, used).backward()
        optimizer.step()
        wanted = [1.0, 1.0 / n, (1.0 / n) if step % 2 else 0.0, 0.0]
        for i, (branch, grad) in enumerate(zip(net.branches, wanted, strict=True)):
            if grad == 0 and branch.weight.grad is None:
                # No rank had a gradient: not even the weight decay moves it.
                assert torch.equal(branch.weight, before[i])
                continue
            assert branch.weight.grad is not None
            torch.testing.assert_close(branch.weight.detach(), before[i] - (grad + 0.1 * before[i]))
        assert net.branches[3].weight.grad is None
    return [b.weight.tolist() for b in net.branches]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("groups", [None, 2])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_parameters_unused_on_some_ranks(pool, size, groups, set_to_none):
    results = pool(size).run(unused, groups, set_to_none)
    assert all(r == results[0] for r in results)


def no_backward_at_all_on_one_rank():
    p = torch.zeros(3, requires_grad=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0))
    if hvd.rank() == 0:
        p.sum().backward()
    optimizer.step()
    torch.testing.assert_close(p.detach(), torch.full((3,), -1.0 / hvd.size()))
    before = p.detach().clone()
    optimizer.zero_grad()
    optimizer.step()  # nobody has a gradient
    assert torch.equal(p, before)
    # Gradients that no backward pass made.
    p.grad = torch.full((3,), float(hvd.rank()))
    optimizer.step()
    n = hvd.size()
    torch.testing.assert_close(p.detach(), torch.full((3,), -1.0 / n - (n - 1) / 2))


def test_ranks_without_backward(pool):
    pool(3).run(no_backward_at_all_on_one_rank)


def frozen():
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    hvd.broadcast_parameters(net.state_dict(), 0)
    net[0].requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), net.named_parameters(), groups=1)
    first = net[0].weight.detach().clone()
    x = torch.full((1, 2), float(hvd.rank() + 1))
    net(x).sum().backward()
    optimizer.step()
    assert torch.equal(net[0].weight, first)
    assert net[0].weight.grad is None
    # Thawed after wrapping.
    net[0].requires_grad_(True)
    for _ in range(2):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
    assert not torch.equal(net[0].weight, first)
    assert hvd.allgather_object(net[0].weight.tolist()) == [net[0].weight.tolist()] * hvd.size()


def test_frozen_parameters(pool):
    pool(2).run(frozen)


def sparse_gradients(as_dense, groups, only_rank_0):
    torch.manual_seed(0)
    table = torch.nn.Embedding(6, 2, sparse=True)
    dense = torch.nn.Linear(2, 1, bias=False)
    net = torch.nn.ModuleDict({"table": table, "dense": dense})
    start = table.weight.detach().clone()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=1.0), net.named_parameters(), sparse_as_dense=as_dense, groups=groups
    )
    for _ in range(2):
        optimizer.zero_grad()
        loss = dense(torch.ones(1, 2)).sum()
        if hvd.rank() == 0 or not only_rank_0:
            loss = loss + table(torch.tensor([hvd.rank(), 5, 5])).sum()
        loss.backward()
        optimizer.step()
        assert table.weight.grad.is_sparse != as_dense
    n = hvd.size()
    want = torch.zeros(6, 2)
    for r in range(1 if only_rank_0 else n):
        want[r] += 1
        want[5] += 2
    torch.testing.assert_close(table.weight.detach(), start - 2 * want / n)


@pytest.mark.parametrize("as_dense", [False, True])
@pytest.mark.parametrize("groups", [None, 1])
@pytest.mark.parametrize("only_rank_0", [False, True])
def test_sparse_gradients(pool, as_dense, groups, only_rank_0):
    pool(3).run(sparse_gradients, as_dense, groups, only_rank_0)


def two_optimizers():
    # A generator and a discriminator whose parameters have the same names; both get gradients in one backward pass.
    torch.manual_seed(0)
    nets = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]
    optimizers = [
        hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters()) for net in nets
    ]
    x = torch.full((1, 2), float(hvd.rank()))
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        nets[1](nets[0](x)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    mine = [p.tolist() for net in nets for p in net.parameters()]
    assert hvd.allgather_object(mine) == [mine] * hvd.size()


def test_two_optimizers_with_the_same_names(pool):
    pool(2).run(two_optimizers)


def rewrapped():
    p = torch.zeros(1, requires_grad=True)
    sgd = torch.optim.SGD([p], lr=1.0)
    for _ in range(3):
        optimizer = hvd.DistributedOptimizer(sgd, named_parameters=[("p", p)])
        assert optimizer is sgd
        assert type(optimizer).__mro__[2] is torch.optim.SGD
        (p * (hvd.rank() + 1.0)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert p.item() == pytest.approx(-3 * 1.5)
    # One that is gone does not reduce any more.
    del optimizer, sgd
    gc.collect()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), named_parameters=[("p", p)])
    (p * (hvd.rank() + 1.0)).sum().backward()
    optimizer.step()
    assert p.item() == pytest.approx(-4 * 1.5)


def test_wrapped_again(pool):
    pool(2).run(rewrapped)


def added_group():
    p, q = torch.zeros(2, requires_grad=True), torch.zeros(3, requires_grad=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), named_parameters=[("p", p)])
    optimizer.add_param_group({"params": [q], "lr": 2.0})
    ((p.sum() + q.sum()) * float(hvd.rank())).backward()
    assert p.grad.tolist() == [0.5] * 2
    assert q.grad.tolist() == [0.5] * 3
    optimizer.step()
    assert p.tolist() == [-0.5] * 2
    assert q.tolist() == [-1.0] * 3


def test_add_param_group(pool):
    pool(2).run(added_group)


def misuse():
    p = torch.zeros(2, requires_grad=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), named_parameters=[("p", p)])
    p.sum().backward()
    optimizer.zero_grad()  # no race: backward() has returned
    for _ in range(2):
        p.sum().backward()
    assert p.grad.tolist() == [2.0, 2.0]
    optimizer.step()
    optimizer.zero_grad()
    # A forgotten skip_synchronize: one warning, and the gradients are not reduced twice.
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), named_parameters=[("p", p)], op=hvd.Sum)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # puts a frame of PyTorch's between; the warning passes it over
    before = p.detach().clone()
    p.sum().backward()
    optimizer.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    assert [w.category for w in caught] == [UserWarning]
    assert "skip_synchronize" in str(caught[0].message)
    assert caught[0].filename == __file__
    assert torch.equal(before - hvd.size(), p)
    optimizer.zero_grad()
    p.sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad()
        p.sum().backward()
        optimizer.step()


def test_wrong_order_of_calls(pool):
    pool(2).run(misuse)


def loaded():
    def make():
        torch.manual_seed(0)
        net = torch.nn.Linear(2, 2)
        return net, hvd.DistributedOptimizer(torch.optim.Adam(net.parameters(), lr=0.1), net.named_parameters())

    net, optimizer = make()
    x = torch.full((1, 2), float(hvd.rank() + 1))
    net(x).sum().backward()
    optimizer.step()
    saved = pickle.loads(pickle.dumps((net.state_dict(), optimizer.state_dict())))
    optimizer.zero_grad()
    net(x).square().sum().backward()
    optimizer.step()
    other, resumed = make()
    other(x).sum().backward()  # on its way when the state is loaded
    other.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    resumed.zero_grad()
    other(x).square().sum().backward()
    resumed.step()
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), other.parameters(), strict=True))


def test_load_state_dict(pool):
    pool(2).run(loaded)


def failed_reduction():
    # A reduction that fails leaves nothing behind: the next step works.
    p = torch.zeros(2 + hvd.rank(), requires_grad=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), named_parameters=[("p", p)])
    with pytest.raises(hvd.HorovodInternalError, match="p"):
        p.sum().backward()
    assert not optimizer._hvd.reducer.busy
    q = torch.zeros(2, requires_grad=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([q], lr=1.0), named_parameters=[("q", q)])
    q.sum().backward()
    optimizer.step()
    assert q.tolist() == [-1.0, -1.0]


def test_failure_in_step(pool):
    pool(2).run(failed_reduction)


class NeedsArguments(torch.optim.SGD):
    def __init__(self, params, lr, required):
        super().__init__(params, lr=lr)
        self.required = required


def identity():
    p = torch.zeros(1, requires_grad=True)
    plain = NeedsArguments([p], 0.5, "x")
    groups, state, defaults = plain.param_groups, plain.state, plain.defaults
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=[("p", p)])
    assert isinstance(optimizer, NeedsArguments)
    assert type(optimizer).__name__ == "NeedsArguments"
    assert optimizer.required == "x"
    assert optimizer.param_groups is groups
    assert optimizer.state is state
    assert optimizer.defaults is defaults
    assert optimizer._parameter_names == {p: "p"}
    clone = copy.deepcopy(optimizer)
    assert type(clone) is NeedsArguments
    assert clone.param_groups[0]["lr"] == 0.5
    (p * 2).sum().backward()
    # Hooks of the user's run once for each step, and super().step() inside of a step does not synchronize again.
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    optimizer.step()
    assert calls.count("pre") in (1, 2)  # torch runs them for the class and, where that has a step of its own, its base
    assert p.item() == -1.0


@pytest.mark.parametrize("size", [1, 2])
def test_identity(pool, size):
    pool(size).run(identity)


def schedulers():
    for before in (True, False):
        p = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.SGD([p], lr=1.0)
        made = [StepLR(optimizer, 1, 0.5)] if before else []
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=[("p", p)])
        made.append(LambdaLR(optimizer, lambda e: 1.0) if before else StepLR(optimizer, 1, 0.5))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns when it thinks that step was replaced or not called
            for _ in range(3):
                optimizer.zero_grad()
                (p * float(hvd.rank())).sum().backward()
                optimizer.step()
                made[0].step()
        assert p.item() == pytest.approx(-(hvd.size() - 1) / 2 * 1.75)


def test_schedulers_before_and_after(pool):
    pool(2).run(schedulers)
