"""SyncBatchNorm equals batch normalization over the combined batch."""

import pytest
import torch

import horovod.torch as hvd
from tests.ranks import on_ranks

PLAIN = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d}


def compare(shape, dtype, options, device="cpu"):
    n, me = hvd.size(), hvd.rank()
    sizes = [r + 2 for r in range(n)]  # batches of different sizes
    generator = torch.Generator().manual_seed(3)
    joined = (torch.randn(sum(sizes), *shape, generator=generator, dtype=dtype) * 3 + 100).to(device)
    weights = torch.randn(sum(sizes), *shape, generator=generator, dtype=dtype).to(device)
    begin = sum(sizes[:me])
    own = slice(begin, begin + sizes[me])
    sync, plain = (kind(shape[0], **options).to(dtype) for kind in (hvd.SyncBatchNorm, PLAIN[len(shape) + 1]))
    for net in (sync, plain):
        if net.affine:
            torch.nn.init.uniform_(net.weight, generator=torch.Generator().manual_seed(4))
            torch.nn.init.uniform_(net.bias, generator=torch.Generator().manual_seed(5))
        net.to(device)
    tolerance = 1e-9 if dtype is torch.float64 else 1e-4 if device == "cpu" else 1e-3
    close = {"rtol": tolerance, "atol": tolerance}
    for _ in range(2):
        x, y = joined[own].clone().requires_grad_(), joined.clone().requires_grad_()
        a, b = sync(x), plain(y)
        torch.testing.assert_close(a, b[own], **close)
        (a * weights[own]).sum().backward()
        (b * weights).sum().backward()
        torch.testing.assert_close(x.grad, y.grad[own], **close)
    for name, buffer in sync.named_buffers():
        torch.testing.assert_close(buffer, dict(plain.named_buffers())[name], **close)
    for p, q in zip(sync.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(hvd.allreduce(p.grad, op=hvd.Sum), q.grad, **close)
    sync.eval(), plain.eval()
    torch.testing.assert_close(sync(joined[own]), plain(joined[own]), **close)


@pytest.mark.parametrize("size", [1, 3])
def test_equals_joined_batch(pool, size):
    for shape in ((3,), (3, 4), (2, 3, 5)):
        pool(size).run(compare, shape, torch.float64, {})
    pool(size).run(compare, (3, 2, 2), torch.float32, {"eps": 1e-3, "momentum": 0.3})
    pool(size).run(compare, (3,), torch.float64, {"affine": False})
    pool(size).run(compare, (3,), torch.float64, {"momentum": None})


@pytest.mark.usefixtures("single")
def test_wrong_inputs():
    net = hvd.SyncBatchNorm(3)
    with pytest.raises(ValueError, match="at least 2 dimensions, got 1"):
        net(torch.ones(3))
    with pytest.raises(ValueError, match="3 features, got 4"):
        net(torch.ones(2, 4))


@on_ranks(2)
def test_no_values_on_any_rank_and_other_dtypes():
    net = hvd.SyncBatchNorm(3)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    x = torch.empty(0, 3, requires_grad=True)
    net(x).sum().backward()
    assert x.grad.shape == (0, 3)
    assert not net.weight.grad.any()
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name
    for dtype in (torch.int64, torch.complex64, torch.bool):
        with pytest.raises(ValueError, match="dtype must be a floating-point one"):
            net(torch.ones(4, 3).to(dtype))
