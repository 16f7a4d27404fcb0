"""Gradients of the functions that autograd sees: table 1.4 of the API."""

import pytest
import torch

import horovod.torch as hvd


def leaf(*shape):
    generator = torch.Generator().manual_seed(hvd.rank())
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def weight(rank, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(100 + rank), dtype=torch.float64)


def gradient(x, output):
    (output * weight(hvd.rank(), *output.shape)).sum().backward()
    return x.grad


def allreduce_gradient():
    n, me = hvd.size(), hvd.rank()
    total = sum(weight(r, 3, 2) for r in range(n))
    for op, factor in ((hvd.Sum, 1.0), (hvd.Average, 1.0 / n)):
        for pre, post in ((1.0, 1.0), (0.5, 4.0)):
            x = leaf(3, 2)
            y = hvd.allreduce(x, op=op, prescale_factor=pre, postscale_factor=post, name="n" if pre == 1.0 else None)
            torch.testing.assert_close(gradient(x, y), total * factor * pre * post)
    x, z = leaf(3, 2), leaf(4)
    a, _ = hvd.grouped_allreduce([x, z], op=hvd.Sum)
    (a * weight(me, 3, 2)).sum().backward()  # the gradient of b is missing and counts as zero
    torch.testing.assert_close(x.grad, total)
    assert not z.grad.any()
    # An expanded, so non-contiguous, gradient.
    x = leaf(3, 2)
    hvd.allreduce(x, op=hvd.Sum).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3, 2), float(n), dtype=torch.float64))


def allgather_gradient():
    n, me = hvd.size(), hvd.rank()
    rows = [r + 1 for r in range(n)]
    begin = sum(rows[:me])
    mean = sum(weight(r, sum(rows), 2) for r in range(n)) / n
    x = leaf(rows[me], 2)
    torch.testing.assert_close(gradient(x, hvd.allgather(x, name="g")), mean[begin : begin + rows[me]])
    x, z = leaf(rows[me], 2), leaf(2)
    a, b = hvd.grouped_allgather([x, z])
    ((a * weight(me, *a.shape)).sum() + b.sum() * n).backward()
    torch.testing.assert_close(x.grad, mean[begin : begin + rows[me]])
    torch.testing.assert_close(z.grad, torch.full((2,), float(n), dtype=torch.float64))


def broadcast_gradient():
    n = hvd.size()
    mean = sum(weight(r, 4) for r in range(n)) / n
    for root in range(n):
        x = leaf(4)
        got = gradient(x, hvd.broadcast(x, root))
        torch.testing.assert_close(got, mean if hvd.rank() == root else torch.zeros(4, dtype=torch.float64))


def alltoall_gradient():
    n, me = hvd.size(), hvd.rank()
    # Without communication the gradient of row k is the weight of where row k went.
    x = leaf(2 * n)
    got = gradient(x, hvd.alltoall(x))
    want = torch.cat([weight(i, 2 * n)[2 * me : 2 * me + 2] for i in range(n)])
    torch.testing.assert_close(got, want)
    splits = [me + i for i in range(n)]
    x = leaf(sum(splits) + 2)
    output, received = hvd.alltoall(x, splits=splits, name="a")
    got = gradient(x, output)
    want = []
    for i in range(n):
        begin = sum(r + i for r in range(me))
        want.append(weight(i, sum(r + i for r in range(n)))[begin : begin + me + i])
    want.append(torch.zeros(2, dtype=torch.float64))  # rows that stayed
    torch.testing.assert_close(got, torch.cat(want))
    assert not received.requires_grad


def reducescatter_gradient():
    n = hvd.size()
    rows = [2] * n
    rows[0] += 1
    gathered = torch.cat([weight(r, rows[r], 2) for r in range(n)])
    for op, factor in ((hvd.Sum, float(n)), (hvd.Average, 1.0)):
        x = leaf(2 * n + 1, 2)
        y = hvd.reducescatter(x, op=op, prescale_factor=0.5, postscale_factor=3.0)
        torch.testing.assert_close(gradient(x, y), gathered * factor * 1.5)
        x = leaf(2 * n + 1, 2)
        (y,) = hvd.grouped_reducescatter([x], op=op, name="r")
        torch.testing.assert_close(gradient(x, y), gathered * factor)


def compressed_gradient():
    x = torch.ones(4, requires_grad=True)
    y = hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.fp16)
    assert y.dtype is torch.float32
    y.sum().backward()
    assert x.grad.tolist() == [float(hvd.size())] * 4


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    "gradient_of",
    [
        allreduce_gradient,
        allgather_gradient,
        broadcast_gradient,
        alltoall_gradient,
        reducescatter_gradient,
        compressed_gradient,
    ],
)
def test_gradients(pool, gradient_of, size):
    pool(size).run(gradient_of)
