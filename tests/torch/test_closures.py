"""step(closure): all ranks see the same loss, so a line search takes the same path on all of them."""

import pytest
import torch

import horovod.torch as hvd
from tests.ranks import on_ranks
from tests.torch.programs import assert_all_equal, network


def rows(rank):
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(3 + 4 * rank, 5, generator=generator, dtype=torch.float64) * (1 + rank)
    return x, x[:, :1].sin()


@pytest.mark.parametrize(("op", "kind"), [(hvd.Average, "tensor"), (hvd.Sum, "number")])
@on_ranks(3)
def test_line_search_on_uneven_data(op, kind):
    """Compare LBFGS on uneven data with one process that has all of the data."""
    net, reference = network(), network()
    options = {"lr": 1.0, "max_iter": 12, "history_size": 6, "line_search_fn": "strong_wolfe"}
    optimizer = hvd.DistributedOptimizer(torch.optim.LBFGS(net.parameters(), **options), net.named_parameters(), op=op)
    plain = torch.optim.LBFGS(reference.parameters(), **options)
    n = 1 if op == hvd.Sum else hvd.size()
    calls = [0, 0]

    def loss_of(model, ranks):
        return sum((model(rows(r)[0]) - rows(r)[1]).square().sum() for r in ranks)

    def closure():
        calls[0] += 1
        optimizer.zero_grad()
        loss = loss_of(net, [hvd.rank()])
        loss.backward()
        return loss.item() if kind == "number" else loss

    def full_closure():
        calls[1] += 1
        plain.zero_grad()
        loss = loss_of(reference, range(hvd.size())) / n
        loss.backward()
        return loss

    for _ in range(4):
        loss, expected = optimizer.step(closure), plain.step(full_closure)
        assert isinstance(loss, float if kind == "number" else torch.Tensor)
        assert float(loss) == pytest.approx(float(expected), rel=1e-6)
        assert calls[0] == calls[1]
    assert_all_equal(net)
    torch.testing.assert_close(list(net.parameters()), list(reference.parameters()), rtol=1e-4, atol=1e-6)
    assert hvd.allgather_object(calls) == [calls] * hvd.size()


@on_ranks(2)
def test_closures_without_a_used_loss():
    # Ranks may return different values where the optimizer ignores them.
    net = network()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    for number in range(4):
        value = [None, 2, torch.tensor([1.0, 2.0]), torch.tensor(4.0)][(number + hvd.rank()) % 4]

        def closure(number=number, value=value):
            optimizer.zero_grad()
            if (number + hvd.rank()) % 3:
                net(rows(hvd.rank())[0]).square().mean().backward()
            return value

        result = optimizer.step(closure)
        assert type(result) is type(value) or isinstance(result, float)
        assert_all_equal(net)
    assert optimizer.step(lambda: torch.tensor(float(hvd.rank()))).item() == (hvd.size() - 1) / 2
