"""broadcast_parameters and broadcast_optimizer_state."""

import pytest
import torch

import horovod.torch as hvd
from tests.ranks import on_ranks
from tests.torch.reference import same_bits


def model():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(16, 2)
    )


@on_ranks(3)
def test_broadcast_parameters():
    for root in range(hvd.size()):
        for form in ("state_dict", "named", "plain", "list"):
            torch.manual_seed(hvd.rank())
            net = model()
            net = net.to(memory_format=torch.channels_last) if hvd.rank() == 0 else net
            torch.manual_seed(root)
            want = model().state_dict()
            values = {
                "state_dict": net.state_dict(),
                "named": net.named_parameters(),
                "plain": net.parameters(),
                "list": list(net.state_dict().items()),
            }[form]
            hvd.broadcast_parameters(values, root)
            for name, p in net.named_parameters():
                assert same_bits(p, want[name]), (root, form, name)
    odd = {"b": torch.tensor(hvd.rank()), "a": torch.full((2, 3), float(hvd.rank())).t(), "none": None}
    hvd.broadcast_parameters(odd, 1)
    assert odd["b"].item() == 1
    assert (odd["a"] == 1).all()


@pytest.mark.usefixtures("single")
def test_wrong_parameters():
    for bad, kind in ((5, "int"), ("abc", "str"), (torch.ones(2), "Tensor"), ([("x", 3)], "int"), ({"x": "y"}, "str")):
        with pytest.raises(ValueError, match=kind):
            hvd.broadcast_parameters(bad, 0)


def make_optimizer(kind, net, rank):
    lr = 0.1 * (rank + 1)
    return {
        "sgd": lambda: torch.optim.SGD(net.parameters(), lr=lr),
        "momentum": lambda: torch.optim.SGD(net.parameters(), lr=lr, momentum=0.5 + rank / 10, nesterov=True),
        "adam": lambda: torch.optim.Adam(net.parameters(), lr=lr, betas=(0.5 + rank / 10, 0.9), amsgrad=True),
        "adamw tensor lr": lambda: torch.optim.AdamW(net.parameters(), lr=torch.tensor(lr), foreach=False),
        "adagrad": lambda: torch.optim.Adagrad(net.parameters(), lr=lr),
        "groups": lambda: torch.optim.Adam(
            [{"params": net[0].parameters(), "lr": lr / 2}, {"params": net[3].parameters()}], lr=lr
        ),
    }[kind]()


KINDS = ["sgd", "momentum", "adam", "adamw tensor lr", "adagrad", "groups"]


def flat(value):
    """Return a state dict with lists in place of tensors, which can be compared with ==."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape), value.reshape(-1).tolist()]
    if isinstance(value, dict):
        return {k: flat(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [flat(v) for v in value]
    return value


def optimizer_state(kind, wrapped):
    torch.manual_seed(0)
    net = model()
    optimizer = make_optimizer(kind, net, hvd.rank())
    tensor_lr = optimizer.param_groups[0]["lr"]
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters())
    plain_step = type(optimizer).__mro__[2].step if wrapped else type(optimizer).step
    if hvd.rank() != 1:  # rank 1 has no state yet; ranks 0 and 2 have different ones
        for _ in range(hvd.rank() + 2):
            for p in net.parameters():
                p.grad = torch.full_like(p, 0.1 * (hvd.rank() + 1))
            with torch.no_grad():
                plain_step(optimizer)
    net.zero_grad()
    before = {n: p.detach().clone() for n, p in net.named_parameters()}
    own = flat(optimizer.state_dict())
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert all(same_bits(before[n], p) for n, p in net.named_parameters()), "a parameter changed"
    assert all(p.grad is None for p in net.parameters())
    after = flat(optimizer.state_dict())
    if hvd.rank() == 0:
        assert after == own
    if isinstance(tensor_lr, torch.Tensor):
        assert optimizer.param_groups[0]["lr"] is tensor_lr
    # The optimizer still works.
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    with torch.no_grad():
        plain_step(optimizer)
    return after


@pytest.mark.parametrize("kind", KINDS)
def test_broadcast_optimizer_state(pool, kind):
    for wrapped in (False, True):
        states = pool(3).run(optimizer_state, kind, wrapped)
        assert states[0] == states[1] == states[2]
        assert kind == "sgd" or states[0]["state"]


@pytest.mark.usefixtures("single")
def test_lbfgs_is_refused():
    net = model()
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(net.parameters()), 0)
    with pytest.raises(ValueError, match="int"):
        hvd.broadcast_optimizer_state(3, 0)
