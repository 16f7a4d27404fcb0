"""GradScaler and autocast: all ranks skip a step or none does. tests/gpu does the same on a GPU."""

import contextlib

import pytest
import torch

import horovod.torch as hvd
from tests.torch.programs import batch, network, wrap


def scaled(op, compression, unscale, overflow, device="cpu", low=torch.bfloat16):
    """Train with losses that sometimes overflow on one rank; return how many steps were skipped."""
    net = network(dtype=torch.float32).to(device)
    optimizer = wrap(net, lambda p: torch.optim.Adam(p, lr=0.01), op=op, compression=compression)
    scaler = torch.amp.GradScaler(device, init_scale=256.0, growth_interval=5)
    scales, skipped = [], 0
    for number in range(30):
        optimizer.zero_grad()
        with torch.autocast(device, low):
            loss = net(batch(number).float().to(device)).square().mean()
        if number % 7 == 3 and hvd.rank() == number % hvd.size():
            loss = loss * overflow  # on this rank only
        before = [p.detach().clone() for p in net.parameters()]
        scaler.scale(loss).backward()
        apart = unscale and number % 2  # backward() has reduced gradients; synchronize() is still allowed
        if apart:
            optimizer.synchronize()
        if unscale:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        with optimizer.skip_synchronize() if apart else contextlib.nullcontext():
            scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        moved = any(not torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))
        assert hvd.allgather_object(moved) == [moved] * hvd.size(), number
        skipped += not moved
    assert hvd.allgather_object(scales) == [scales] * hvd.size()
    hvd.check_in_sync(net)
    assert all(torch.isfinite(p).all() for p in net.parameters())
    return skipped


CASES = {
    "average": (hvd.Average, "none", False, float("inf")),
    "clipped": (hvd.Average, "none", True, float("nan")),
    "fp16": (hvd.Average, "fp16", False, 1e12),
    "wire_int8": (hvd.Average, "wire_int8", True, float("inf")),
    "max": (hvd.Max, "none", True, float("nan")),
}


@pytest.mark.parametrize("case", CASES)
def test_one_rank_overflows(pool, case):
    op, compression, unscale, overflow = CASES[case]
    for skipped in pool(2).run(scaled, op, getattr(hvd.Compression, compression), unscale, overflow):
        assert skipped == (4 if case != "max" else skipped)
