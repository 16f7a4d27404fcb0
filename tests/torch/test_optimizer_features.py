"""Special cases of DistributedOptimizer: missing and sparse gradients, several optimizers, wrong use, identity."""

import copy
import gc
import itertools
import pickle
import warnings

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, StepLR

import horovod.torch as hvd
from tests.ranks import on_ranks
from tests.torch.programs import assert_all_equal


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.branches = torch.nn.ModuleList(torch.nn.Linear(2, 1, bias=False) for _ in range(4))

    def forward(self, x, used):
        return sum(self.branches[i](x).sum() for i in used)


@pytest.mark.parametrize("groups", [None, 2])
@pytest.mark.parametrize("set_to_none", [True, False])
@on_ranks(3)
def test_parameters_unused_on_some_ranks(groups, set_to_none):
    net = Branches()
    sgd = torch.optim.SGD(net.parameters(), lr=1.0, weight_decay=0.1)
    optimizer = hvd.DistributedOptimizer(sgd, net.named_parameters(), groups=groups)
    x = torch.ones(1, 2)
    n = hvd.size()
    for step in range(5):
        before = [b.weight.detach().clone() for b in net.branches]
        optimizer.zero_grad(set_to_none=set_to_none)
        # All ranks use branch 0, rank 0 alone uses 1, the last rank uses 2 every other step, no rank uses 3.
        used = [0]
        if hvd.rank() == 0:
            used.append(1)
        if hvd.rank() == n - 1 and step % 2:
            used.append(2)
        net(x, used).backward()
        optimizer.step()
        expected = [1.0, 1.0 / n, (1.0 / n) if step % 2 else 0.0, 0.0]
        for i, (branch, grad) in enumerate(zip(net.branches, expected, strict=True)):
            if grad == 0 and branch.weight.grad is None:
                # No rank had a gradient: not even weight decay changes it.
                assert torch.equal(branch.weight, before[i])
                continue
            assert branch.weight.grad is not None
            torch.testing.assert_close(branch.weight.detach(), before[i] - (grad + 0.1 * before[i]))
        assert net.branches[3].weight.grad is None
    assert_all_equal(net)


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


def test_sparse_gradients(pool):
    for options in itertools.product((False, True), (None, 1), (False, True)):
        pool(3).run(sparse_gradients, *options)


@on_ranks(2)
def test_wrapped_again():
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
    # A deleted optimizer reduces nothing.
    del optimizer, sgd
    gc.collect()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), named_parameters=[("p", p)])
    (p * (hvd.rank() + 1.0)).sum().backward()
    optimizer.step()
    assert p.item() == pytest.approx(-4 * 1.5)


@on_ranks(2)
def test_wrong_order_of_calls():
    p = torch.zeros(2, requires_grad=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), named_parameters=[("p", p)])
    p.sum().backward()
    optimizer.zero_grad()  # not a race: backward() has returned
    for _ in range(2):
        p.sum().backward()
    assert p.grad.tolist() == [2.0, 2.0]
    optimizer.step()
    optimizer.zero_grad()
    # If skip_synchronize is forgotten, one warning appears and gradients are not reduced twice.
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), named_parameters=[("p", p)], op=hvd.Sum)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # adds a frame of PyTorch's, which the warning skips
    before = p.detach().clone()
    p.sum().backward()
    optimizer.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    assert [w.category for w in caught] == [UserWarning]
    assert "optimizer.step() called without optimizer.skip_synchronize()" in str(caught[0].message)
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


@on_ranks(2)
def test_load_state_dict():
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
    other(x).sum().backward()  # in flight when the state is loaded
    other.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    resumed.zero_grad()
    other(x).square().sum().backward()
    resumed.step()
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), other.parameters(), strict=True))


@on_ranks(2)
def test_failure_in_step():
    # A failed reduction leaves nothing behind: the next step works.
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


class NeedsArguments(torch.optim.SGD):
    def __init__(self, params, lr, required):
        super().__init__(params, lr=lr)
        self.required = required


@on_ranks(1, 2)
def test_identity():
    p = torch.zeros(1, requires_grad=True)
    plain = NeedsArguments([p], 0.5, "x")
    before = dict(vars(plain))
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=[("p", p)])
    assert isinstance(optimizer, NeedsArguments)
    assert type(optimizer).__name__ == "NeedsArguments"
    assert optimizer.required == "x"
    assert all(vars(optimizer)[name] is before[name] for name in ("param_groups", "state", "defaults"))
    assert optimizer._parameter_names == {p: "p"}
    clone = copy.deepcopy(optimizer)
    assert type(clone) is NeedsArguments
    assert clone.param_groups[0]["lr"] == 0.5
    (p * 2).sum().backward()
    # The user's hooks run once for each step, and super().step() within a step does not synchronize again.
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    optimizer.step()
    assert calls.count("pre") in (1, 2)  # torch runs them for the class and for its base if the class overrides step
    assert p.item() == -1.0


@on_ranks(2)
def test_schedulers_before_and_after():
    for before in (True, False):
        p = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.SGD([p], lr=1.0)
        schedulers = [StepLR(optimizer, 1, 0.5)] if before else []
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=[("p", p)])
        schedulers.append(LambdaLR(optimizer, lambda e: 1.0) if before else StepLR(optimizer, 1, 0.5))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns if it believes that step was replaced or not called
            for _ in range(3):
                optimizer.zero_grad()
                (p * float(hvd.rank())).sum().backward()
                optimizer.step()
                schedulers[0].step()
        assert p.item() == pytest.approx(-(hvd.size() - 1) / 2 * 1.75)
