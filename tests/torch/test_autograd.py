"""First and second derivatives of collectives (table 1.4 of the API) and of SyncBatchNorm; reductions without any."""

import pytest
import torch

import horovod.torch as hvd
from tests.ranks import on_ranks


def values(rank, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


def backward_scaled(tensor, factor):
    """Return the tensor with its gradient scaled: some gradients are averages where these tests expect sums."""
    return tensor * factor + (tensor * (1 - factor)).detach()


def splits(rank):
    return [rank + to for to in range(hvd.size())]


def exchanged(xs, me):
    begins = [sum(splits(r)[:me]) for r in range(len(xs))]
    return torch.cat([x[begin : begin + splits(r)[me]] for r, (x, begin) in enumerate(zip(xs, begins, strict=True))])


def operations():
    """Return by name: the operation on this rank's rows; its expected result, and the number of rows of a rank.

    The expected result on rank ``me``, with gradients, is computed in one process from the rows of all ranks.
    """
    n = hvd.size()

    def alike(rank):
        return 2 * n

    def with_rest(rank):
        return 2 * n + 1

    def part(xs, me):
        return torch.tensor_split(sum(xs), n)[me]

    scaled = {"prescale_factor": 0.5, "postscale_factor": 3.0}
    return {
        "allreduce": (lambda x: hvd.allreduce(x, **scaled), lambda xs, me: sum(xs) * 1.5 / n, alike),
        "sum": (lambda x: hvd.allreduce(x, op=hvd.Sum, name="sum"), lambda xs, me: sum(xs), alike),
        "grouped_allreduce": (
            lambda x: hvd.grouped_allreduce([x, x.sum()], op=hvd.Sum)[0],
            lambda xs, me: sum(xs),
            alike,
        ),
        "allgather": (hvd.allgather, lambda xs, me: backward_scaled(torch.cat(xs), 1 / n), lambda rank: rank + 1),
        "grouped_allgather": (
            lambda x: hvd.grouped_allgather([x, x * 2])[0],
            lambda xs, me: backward_scaled(torch.cat(xs), 1 / n),
            lambda rank: rank + 1,
        ),
        **{
            f"broadcast of {root}": (
                lambda x, root=root: hvd.broadcast(x, root),
                lambda xs, me, root=root: backward_scaled(xs[root] * 1.0, 1 / n),
                alike,
            )
            for root in {0, n - 1}
        },
        "alltoall": (hvd.alltoall, lambda xs, me: torch.cat([x[2 * me : 2 * me + 2] for x in xs]), alike),
        "alltoall with splits": (  # two rows are not sent
            lambda x: hvd.alltoall(x, splits=splits(hvd.rank()), name="splits")[0],
            exchanged,
            lambda rank: sum(splits(rank)) + 2,
        ),
        "reducescatter": (
            lambda x: hvd.reducescatter(x, op=hvd.Sum, **scaled),
            lambda xs, me: backward_scaled(part(xs, me) * 1.5, n),
            with_rest,
        ),
        "grouped_reducescatter": (
            lambda x: hvd.grouped_reducescatter([x, x * 2], name="scatter")[0],
            lambda xs, me: backward_scaled(part(xs, me) / n, n),
            with_rest,
        ),
    }


def penalty(loss, inputs):
    """Return the sum of squares of a loss's gradients."""
    gradients = torch.autograd.grad(loss, inputs, create_graph=True, allow_unused=True)
    return sum(g.square().sum() for g in gradients if g is not None)


def weighted(output, rank):
    return (output * values(100 + rank, *output.shape)).sum()


@pytest.mark.parametrize("order", [1, 2])
@on_ranks(1, 3)
def test_derivatives_of_operations(order):
    n, me = hvd.size(), hvd.rank()
    for name, (distributed, alone, rows) in operations().items():
        x = values(me, rows(me), 3).requires_grad_()
        xs = [values(r, rows(r), 3).requires_grad_() for r in range(n)]
        outputs = [alone(xs, r) for r in range(n)]
        if order == 1:
            weighted(distributed(x), me).backward()
            sum(weighted(output, r) for r, output in enumerate(outputs)).backward()
        else:
            penalty((distributed(x) ** 3).sum(), [x]).backward()
            penalty(sum((output**3).sum() for output in outputs), xs).backward()
        expected = torch.zeros_like(x) if xs[me].grad is None else xs[me].grad  # a broadcast uses only the root's
        torch.testing.assert_close(x.grad, expected, msg=lambda text, name=name: f"{name}: {text}")
    hvd.barrier()


@on_ranks(1, 3)
def test_gradients_that_are_missing_expanded_or_compressed():
    n, me = hvd.size(), hvd.rank()
    x, unused = values(me, 3, 2).requires_grad_(), values(me, 4).requires_grad_()
    hvd.grouped_allreduce([x, unused], op=hvd.Sum)[0].sum().backward()  # an expanded gradient; none for the second
    assert x.grad.tolist() == [[float(n)] * 2] * 3
    assert not unused.grad.any()
    x, other = values(me, me + 1).requires_grad_(), values(me, 2).requires_grad_()
    both = hvd.grouped_allgather([x, other])
    (both[0].sum() + n * both[1].sum()).backward()
    assert (x.grad.tolist(), other.grad.tolist()) == ([1.0] * (me + 1), [float(n)] * 2)
    x = torch.ones(4, requires_grad=True)
    y = hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.fp16)
    assert y.dtype is torch.float32
    y.sum().backward()
    assert x.grad.tolist() == [float(n)] * 4
    assert not hvd.alltoall(x, splits=[1] * n, name="received")[1].requires_grad


def batch_norm(options):
    n, me = hvd.size(), hvd.rank()
    sizes = [2 + r for r in range(n)]
    joined = values(9, sum(sizes), 3, 2)
    own = slice(sum(sizes[:me]), sum(sizes[: me + 1]))
    sync, plain = (kind(3, **options).double() for kind in (hvd.SyncBatchNorm, torch.nn.BatchNorm1d))
    if plain.affine:
        for net in (sync, plain):
            net.load_state_dict({**net.state_dict(), "weight": values(1, 3), "bias": values(2, 3)})
    x, y = joined[own].clone().requires_grad_(), joined.clone().requires_grad_()
    penalty((sync(x) ** 3).sum(), [x]).backward()
    penalty((plain(y) ** 3).sum(), [y]).backward()
    torch.testing.assert_close(x.grad, y.grad[own])
    for p, q in zip(sync.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(hvd.allreduce(p.grad, op=hvd.Sum), q.grad)


@on_ranks(1, 3)
def test_second_derivatives_of_sync_batch_norm():
    batch_norm({})
    batch_norm({"affine": False})
