"""Second derivatives through collectives and SyncBatchNorm; reductions that have no gradient."""

import pytest
import torch

import horovod.torch as hvd
from tests.ranks import on_ranks

FACTOR = {"pre": 0.5, "post": 3.0}


def values(rank, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


def backward_scaled(tensor, factor):
    """The tensor itself, with the gradient times a factor: some of ours are averages where the sum is meant."""
    return tensor * factor + (tensor * (1 - factor)).detach()


def together(xs, me):
    """What each operation gives on rank ``me``, from all ranks' inputs, with our gradients, in one process."""
    n = len(xs)
    joined, rows = torch.cat(xs), len(xs[0]) // n
    parts = [sum(x[r * rows : (r + 1) * rows] for x in xs) for r in range(n)]
    return {
        "allreduce": sum(xs) * FACTOR["pre"] * FACTOR["post"] / n,
        "grouped_allreduce": sum(xs),
        "allgather": backward_scaled(joined, 1 / n),
        "grouped_allgather": backward_scaled(joined, 1 / n),
        "broadcast": backward_scaled(xs[n - 1] * 1.0, 1 / n),
        "alltoall": torch.cat([x[me * rows : (me + 1) * rows] for x in xs]),
        "reducescatter": backward_scaled(parts[me], n),
        "grouped_reducescatter": backward_scaled(parts[me] / n, n),
    }


def ours(x):
    last = hvd.size() - 1
    factors = {"prescale_factor": FACTOR["pre"], "postscale_factor": FACTOR["post"]}
    return {
        "allreduce": lambda: hvd.allreduce(x, **factors),
        "grouped_allreduce": lambda: hvd.grouped_allreduce([x, x.sum()], op=hvd.Sum)[0],
        "allgather": lambda: hvd.allgather(x),
        "grouped_allgather": lambda: hvd.grouped_allgather([x, x * 2])[0],
        "broadcast": lambda: hvd.broadcast(x, last, name="root"),
        "alltoall": lambda: hvd.alltoall(x),
        "reducescatter": lambda: hvd.reducescatter(x, op=hvd.Sum),
        "grouped_reducescatter": lambda: hvd.grouped_reducescatter([x, x * 2])[0],
    }


def penalty(loss, inputs):
    """Sum of the squares of a loss' gradients."""
    gradients = torch.autograd.grad(loss, inputs, create_graph=True, allow_unused=True)
    return sum(g.square().sum() for g in gradients if g is not None)


@on_ranks(1, 3)
def test_all_operations():
    n, me = hvd.size(), hvd.rank()
    for name in ours(None):
        x = values(me, 2 * n, 3).requires_grad_()
        penalty((ours(x)[name]() ** 3).sum(), [x]).backward()
        xs = [values(r, 2 * n, 3).requires_grad_() for r in range(n)]
        penalty(sum((together(xs, r)[name] ** 3).sum() for r in range(n)), xs).backward()
        wanted = torch.zeros_like(x) if xs[me].grad is None else xs[me].grad  # only the root's is used in a broadcast
        torch.testing.assert_close(x.grad, wanted, msg=lambda text, name=name: f"{name}: {text}")
    hvd.barrier()


def batch_norm(options):
    n, me = hvd.size(), hvd.rank()
    sizes = [2 + r for r in range(n)]
    joined = values(9, sum(sizes), 3, 2)
    mine = slice(sum(sizes[:me]), sum(sizes[: me + 1]))
    sync, plain = (kind(3, **options).double() for kind in (hvd.SyncBatchNorm, torch.nn.BatchNorm1d))
    if plain.affine:
        for net in (sync, plain):
            net.load_state_dict({**net.state_dict(), "weight": values(1, 3), "bias": values(2, 3)})
    x, y = joined[mine].clone().requires_grad_(), joined.clone().requires_grad_()
    penalty((sync(x) ** 3).sum(), [x]).backward()
    penalty((plain(y) ** 3).sum(), [y]).backward()
    torch.testing.assert_close(x.grad, y.grad[mine])
    for p, q in zip(sync.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(hvd.allreduce(p.grad, op=hvd.Sum), q.grad)


@pytest.mark.parametrize("size", [1, 3])
def test_sync_batch_norm(pool, size):
    pool(size).run(batch_norm, {})
    pool(size).run(batch_norm, {"affine": False})


@on_ranks(2)
def test_reductions_without_a_gradient():
    x = torch.ones(3, requires_grad=True)
    for op in (hvd.Min, hvd.Max, hvd.Product):
        y = hvd.allreduce(x, op=op)
        assert y.tolist() == [1, 1, 1]
        with pytest.raises(NotImplementedError, match="has no gradient"):
            y.sum().backward()
        y, _ = hvd.grouped_allreduce([x, x], op=op)
        with pytest.raises(NotImplementedError, match="has no gradient"):
            y.sum().backward()
    hvd.barrier()
