"""Loops over data of which ranks have different numbers of batches, compared with one process."""

import pytest
import torch

import horovod.torch as hvd
from tests.ranks import on_ranks
from tests.torch.programs import OPTIMIZERS, assert_all_equal, batch, loss_of, network, wrap

COUNTS = {2: (3, 1), 3: (2, 0, 4)}
"""Batches of each rank, by the number of ranks."""


def batches_of(rank):
    """Return the batches of a rank, which differ in their numbers of rows."""
    return [batch(number, rank, rows=1 + rank + 2 * number) for number in range(COUNTS[hvd.size()][rank])]


def train(net, optimizer, batches, clip=0.05):
    visited = 0
    for rows in batches:
        optimizer.zero_grad()
        loss_of(net, rows).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        visited += 1
    return visited


@pytest.mark.parametrize("policy", ["pad", "join", "stop"])
@on_ranks(2, 3)
def test_training_equals_one_process(policy):
    counts, me = COUNTS[hvd.size()], hvd.rank()
    net, twin = network(), network()
    optimizer, plain = wrap(net, OPTIMIZERS["momentum"]), OPTIMIZERS["momentum"](twin.parameters())
    steps = min(counts) if policy == "stop" else max(counts)
    visits = counts[me] if policy == "join" else steps
    batches = hvd.sync(batches_of(me), policy=policy)
    of_all = [batches_of(rank) for rank in range(hvd.size())]
    for _ in range(2):
        if visits < counts[me]:
            with pytest.warns(UserWarning, match=f"{counts[me] - visits} batches of rank {me} are unused"):
                assert train(net, optimizer, batches) == visits
        else:
            assert train(net, optimizer, batches) == visits
        train(twin, plain, [torch.cat([b[k] for b in of_all if k < len(b)]) for k in range(steps)])
        for p, q in zip(net.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)
            momentum, expected = optimizer.state[p].get("momentum_buffer"), plain.state[q].get("momentum_buffer")
            assert expected is None or torch.allclose(momentum, expected, rtol=1e-9, atol=1e-12)
        assert_all_equal(net)
        assert batches.remaining == (counts[me] - steps if policy == "stop" else 0)
        assert batches.last_rank == (counts.index(max(counts)) if policy == "join" else None)


def refuse(*_):
    raise AssertionError("sent an extra message, although the optimizer carries the flag")


@on_ranks(2)
def test_even_data_adds_no_messages():
    net = network()
    optimizer = wrap(net)
    even = hvd.sync([batch(0), batch(1)], policy="join")
    even._exchange = even._catch_up = refuse
    assert train(net, optimizer, even) == 2
    plain = hvd.sync([torch.ones(2 + hvd.rank(), 1)] * (1 + 2 * hvd.rank()), policy="pad")
    seen = [(plain.padding, plain.weight) for _ in plain]  # no optimizer, so extra messages
    assert seen == ([(False, 2), (True, 0), (True, 0)] if hvd.rank() == 0 else [(False, 3)] * 3)


@on_ranks(2)
def test_weights_come_from_the_program():
    net = torch.nn.Linear(1, 1, bias=False)
    optimizer = wrap(net, backward_passes_per_step=2)
    rank = hvd.rank()
    item = {"parts": [torch.full((2, 1), rank + 1.0), torch.full((1, 1), 7.0 * (rank + 1))]}
    for received in hvd.sync([item], weight=lambda item: sum(map(len, item["parts"])) * (1 + rank)):
        optimizer.zero_grad()
        for part in received["parts"]:
            (net(part).sum() / 3).backward()
        optimizer.synchronize()
    assert net.weight.grad.item() == pytest.approx((3 * 3 + 6 * 6) / 9)
    assert hvd.sync([], weight=1.0).weight == 0


@on_ranks(2)
def test_refusals():
    for arguments, message in (
        (([], "drop"), "policy must be one of join, stop, pad, got 'drop'"),
        ((3,), "batches must be iterable, got int"),
        (([], "pad", -1), "weight must be a finite number of 0 or more, got -1"),
    ):
        with pytest.raises(ValueError, match=message):
            hvd.sync(*arguments)
    with pytest.raises(ValueError, match="batch must contain an array with at least one dimension, got str"):
        list(hvd.sync(["text"]))
    for _ in hvd.sync([torch.ones(1)], policy="join"):
        with pytest.raises(RuntimeError, match="must not be nested"):
            list(hvd.sync([torch.ones(1)]))


@pytest.mark.parametrize("make", [OPTIMIZERS["sgd"], lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3)])
@on_ranks(2)
def test_closures(make):
    net, twin = network(), network()
    optimizer, plain = wrap(net, make), make(twin.parameters())
    of_all = [batches_of(rank) for rank in range(2)]

    def step(model, which, rows):
        def closure():
            which.zero_grad()
            loss = loss_of(model, rows)
            loss.backward()
            return loss

        which.step(closure)

    for rows in hvd.sync(of_all[hvd.rank()]):
        step(net, optimizer, rows)
    for k in range(3):
        step(twin, plain, torch.cat([b[k] for b in of_all if k < len(b)]))
    torch.testing.assert_close(list(net.parameters()), list(twin.parameters()), rtol=1e-9, atol=1e-12)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        raise ValueError("wrong")


@on_ranks(2)
def test_a_loop_after_a_failed_backward_pass():
    net = network()
    optimizer = wrap(net)
    for fails in (True, False):
        try:
            for number, rows in enumerate(hvd.sync([batch(0), batch(1)])):
                optimizer.zero_grad()
                hidden = net[0](rows)
                if fails and number == 1 and hvd.rank() == 0:
                    hidden = Fails.apply(hidden)
                net[1:](hidden).square().mean().backward()
                optimizer.step()
            assert not fails
        except (ValueError, hvd.HorovodInternalError):
            assert fails
    assert_all_equal(net)


@pytest.mark.heavy
@on_ranks(2)
def test_join_with_sparse_gradients():
    for make in (torch.optim.SGD, torch.optim.SparseAdam):
        net, twin = (torch.nn.Embedding(6, 2, sparse=True, dtype=torch.float64) for _ in range(2))
        twin.load_state_dict(hvd.broadcast_object(net.state_dict()))
        net.load_state_dict(twin.state_dict())
        optimizer, plain = wrap(net, lambda p, make=make: make(p, lr=0.1)), make(twin.parameters(), lr=0.1)
        of_all = [[torch.tensor([0, rank + 1, step]) for step in range(COUNTS[2][rank])] for rank in range(2)]
        for _ in range(2):
            for tokens in hvd.sync(of_all[hvd.rank()], policy="join"):
                optimizer.zero_grad()
                net(tokens).square().mean().backward()
                optimizer.step()
            for step in range(3):
                plain.zero_grad()
                twin(torch.cat([b[step] for b in of_all if step < len(b)])).square().mean().backward()
                plain.step()
            torch.testing.assert_close(net.weight, twin.weight, rtol=1e-9, atol=1e-12)


@on_ranks(3)
def test_steps_after_join_and_ranks_without_a_pass():
    net, twin = network(), network()
    optimizer, plain = wrap(net), OPTIMIZERS["sgd"](twin.parameters())
    of_all = [batches_of(rank) for rank in range(3)]
    train(net, optimizer, hvd.sync(of_all[hvd.rank()], policy="join"))  # rank 1 has no batch
    train(twin, plain, [torch.cat([b[k] for b in of_all if k < len(b)]) for k in range(4)])
    for rank in range(3):  # outside of the loop all ranks count alike
        optimizer.zero_grad(set_to_none=False)
        if hvd.rank() != rank:
            loss_of(net, batch(9)).backward()
        optimizer.step()
        plain.zero_grad()
        (sum(loss_of(twin, batch(9, r)) for r in range(3) if r != rank) / 2).backward()
        plain.step()
    torch.testing.assert_close(list(net.parameters()), list(twin.parameters()), rtol=1e-9, atol=1e-12)
