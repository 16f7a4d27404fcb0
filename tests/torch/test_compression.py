"""Wire formats: float32 tensors sent as fp16, bf16 or int8."""

import pickle

import pytest
import torch

import horovod.torch as hvd
from tests.ranks import on_ranks

WIRES = ("wire_fp16", "wire_bf16", "wire_int8")


class Forgetful(hvd.Compression.wire_int8):
    """int8 without error feedback."""

    error_feedback = False


def wire_bytes():
    from horovod.common.frontends import state  # the worker's module, not one pickled with this test

    return state.engine.stats()["wire_bytes"]


def noise(rank, n=3000):
    return torch.randn(n, generator=torch.Generator().manual_seed(rank)).clamp(-3.9, 3.9)


def test_a_single_rank_does_not_round(single):
    x = noise(0)
    assert all(torch.equal(hvd.allreduce(x, compression=getattr(hvd.Compression, wire)), x) for wire in WIRES)
    half, context = hvd.Compression.fp16.compress(x)
    assert (half.dtype, hvd.Compression.fp16.decompress(half, context).dtype) == (torch.float16, torch.float32)
    whole = torch.tensor([1, 2])
    assert hvd.Compression.fp16.compress(whole)[0] is whole
    assert hvd.allreduce(whole, compression=hvd.Compression.fp16).dtype is torch.int64


def test_unsupported_compression(single):
    int8 = hvd.Compression.wire_int8
    net = torch.nn.Linear(2, 2)
    for call in (
        lambda wrong: hvd.allreduce(torch.ones(2), compression=wrong),
        lambda wrong: hvd.grouped_allreduce([torch.ones(2)], compression=wrong),
        lambda wrong: hvd.reducescatter(torch.ones(2), compression=wrong),
        lambda wrong: hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1), compression=wrong),
    ):
        for wrong, name in (("fp16", "'fp16'"), (None, "None"), (hvd.Compression, "class.*Compression'")):
            with pytest.raises(ValueError, match=rf"compression must be Compression.none, .fp16.*, got .*{name}"):
                call(wrong)
    with pytest.raises(ValueError, match="must be float32 with compression=WireInt8Compressor, got float64"):
        hvd.allreduce(torch.ones(2, dtype=torch.float64), compression=int8)
    with pytest.raises(ValueError, match=r"grouped_allreduce: .*, got int32"):
        hvd.grouped_allreduce([torch.ones(2), torch.ones(2, dtype=torch.int32)], compression=int8)
    with pytest.raises(ValueError, match=r"op must be Average or Sum .*, got Max"):
        hvd.allreduce(torch.ones(2), op=hvd.Max, compression=int8)
    for call in (hvd.reducescatter, lambda t, compression: hvd.grouped_reducescatter([t], compression=compression)):
        with pytest.raises(ValueError, match=r"reducescatter: .* works with allreduce only"):
            call(torch.ones(2), compression=int8)
    net = torch.nn.Linear(2, 2).double()
    with pytest.raises(ValueError, match=r"parameter 'weight': .*, got float64"):
        hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1), net.named_parameters(), compression=int8)
    net.requires_grad_(False)
    hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1), net.named_parameters(), compression=int8)
    net = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"parameter 'weight': .*, got Min"):
        hvd.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), 0.1), net.named_parameters(), compression=int8, op=hvd.Min
        )


def bytes_sent(name, count=1 << 16):
    p = torch.nn.Parameter(torch.zeros(count))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], 0.1), [("p", p)], getattr(hvd.Compression, name))
    before = wire_bytes()
    for _ in range(3):
        optimizer.zero_grad()
        (p * noise(hvd.rank(), count)).sum().backward()
        optimizer.step()
    return wire_bytes() - before


def test_bytes_on_the_wire(pool):
    job = pool(2, HOROVOD_TRANSPORT="tcp")
    plain = job.run(bytes_sent, "none")[0]
    assert plain >= 3 * 4 * (1 << 16)
    for name, share in (("wire_fp16", 1 / 2), ("wire_bf16", 1 / 2), ("wire_int8", 65 / 256)):
        assert job.run(bytes_sent, name)[0] / plain == pytest.approx(share, rel=0.01)
    assert pool(2).run(bytes_sent, "none")[0] == 0


def drift(compression, steps=200, **options):
    """Return the change of a parameter by SGD with rate 1 and a constant gradient, divided by the number of steps.

    One element of a block has gradient 1; the others are too small for int8 to represent next to it.
    """
    p = torch.nn.Parameter(torch.zeros(256))
    gradient = torch.full((256,), 1e-3 * (1 + hvd.rank()))
    gradient[0] = 1.0
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], 1.0), [("p", p)], compression, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        (p * gradient).sum().backward()
        optimizer.step()
    return (-p.detach() / steps).tolist()


@pytest.mark.parametrize("options", [{}, {"groups": 1}, {"gradient_predivide_factor": 2.0}, {"op": hvd.Sum}])
def test_error_feedback_corrects_the_mean_of_many_steps(pool, options):
    workers = 2
    factor = workers if options.get("op") == hvd.Sum else 1
    for result in pool(workers).run(drift, hvd.Compression.wire_int8, **options):
        assert result[0] == pytest.approx(factor, rel=1e-3)
        for x in result[1:]:
            # A rank's residual is at most half an int8 step, here 1/254; there are two ranks, and the
            # result's own residual.
            assert x == pytest.approx(1.5e-3 * factor, abs=factor * 4 / 254 / 200)
    for result in pool(workers).run(drift, Forgetful, **options):
        assert result[1:] == [0.0] * 255


@on_ranks(2)
def test_residuals_are_not_state():
    """Test whether loading the optimizer's state clears residuals, and what pickling keeps of them."""
    p = torch.nn.Parameter(torch.zeros(256))
    gradient = torch.full((256,), 3e-3)  # 0.38 of an int8 step: rounds to 1 after two steps with the residual
    gradient[0] = 1.0
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], 1.0), [("p", p)], hvd.Compression.wire_int8)
    for _ in range(6):
        optimizer.zero_grad()
        (p * gradient).sum().backward()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
    assert p.detach()[1:].abs().max() == 0
    copy = pickle.loads(pickle.dumps(optimizer))
    assert type(copy) is torch.optim.SGD
    assert not copy.state
