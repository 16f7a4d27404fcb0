"""torch.profiler shows operations by their names."""

import pytest
import torch

import horovod.torch as hvd
from tests.ranks import on_ranks


@on_ranks(2)
def test_the_profiler_shows_operations_by_name():
    net = torch.nn.Linear(4, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())

    def operations():
        hvd.allreduce_(torch.ones(3), name="blocking")
        hvd.synchronize(hvd.allreduce_async_(torch.ones(3), name="background"))
        hvd.broadcast(torch.ones(3), 0, name="sent")
        hvd.synchronize(hvd.grouped_allreduce_async([torch.ones(1), torch.ones(2)], name="pair"))
        hvd.allgather(torch.ones(2))
        hvd.barrier()
        optimizer.zero_grad()
        net(torch.ones(1, 4)).sum().backward()
        optimizer.step()

    operations()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        operations()  # again: repeated calls take a shorter path
    seen = {event.key: event for event in profile.key_averages()}
    submitted = ["allreduce.background", "grouped_allreduce.pair_1of2", "grouped_allreduce.pair_2of2"]
    waited = ["allreduce.blocking", *submitted, "broadcast.sent", "barrier.noname", "noname"]
    for name in (*(f"hvd.submit {n}" for n in submitted), *(f"hvd.wait {n}" for n in waited)):
        assert seen[name].count == 1, (name, list(seen))
    assert seen["hvd.wait allreduce.blocking"].cpu_time_total > 0
    assert any(name.startswith("hvd.wait ") and "gradients" in name for name in seen)
    # A failed operation ends its event, too.
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        with pytest.raises(hvd.HorovodInternalError):
            hvd.allreduce_(torch.ones(1 + hvd.rank()), name="failing")
        hvd.allreduce_(torch.ones(1), name="next")
    names = [event.key for event in profile.key_averages()]
    assert "hvd.wait allreduce.failing" in names
    assert "hvd.wait allreduce.next" in names
