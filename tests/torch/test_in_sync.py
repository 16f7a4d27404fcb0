"""check_in_sync on real ranks."""

import re

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

import horovod.torch as hvd
from horovod.common.exceptions import OutOfSyncError
from tests.ranks import on_ranks


def trained():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), hvd.SyncBatchNorm(8))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    torch.manual_seed(2 + hvd.rank())  # other batches, so other moving statistics of the plain BatchNorm
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(6, 4)).square().sum().backward()
        optimizer.step()
    return model, optimizer, StepLR(optimizer, 3)


@on_ranks(3)
def test_the_first_difference_is_named():
    rank = hvd.rank()
    model, optimizer, scheduler = trained()
    digests = {hvd.check_in_sync(model, optimizer, scheduler, epoch=3) for _ in range(2)}
    assert len(digests) == 1
    assert re.fullmatch("[0-9a-f]{64}", digests.pop())
    means = hvd.allgather(model[1].running_mean).view(3, 8)
    assert not torch.equal(means[0], means[1])

    if rank == 0:  # a common mistake: only rank 0 reads the checkpoint, without a broadcast
        scheduler.load_state_dict({**scheduler.state_dict(), "last_epoch": 5})
    with pytest.raises(OutOfSyncError, match=r"differ: scheduler\.last_epoch is 5 on rank 0 and 0 on ranks 1-2; 1 of"):
        hvd.check_in_sync(model, optimizer, scheduler)
    hvd.check_in_sync(model, optimizer, scheduler, ignore=["scheduler.*"])

    parameter = model[0].weight
    if rank == 2:
        optimizer.state[parameter]["exp_avg"][1, 2] += 1e-7
    text = r"optimizer\.state\[0\]\.exp_avg \(float32 of shape \(8, 4\)\) is one on ranks 0-1, another on rank 2; 1 of"
    with pytest.raises(OutOfSyncError, match=text):
        hvd.check_in_sync(optimizer, model)
    with pytest.raises(OutOfSyncError, match=r"b is -0\.0 on rank 0 and 0\.0 on ranks 1-2"):
        hvd.check_in_sync(a=torch.zeros(3), b=torch.tensor(-0.0 if rank == 0 else 0.0))
    if rank == 1:
        model[2].running_var[3] += 1  # of the synchronized one
    with pytest.raises(OutOfSyncError, match=r"model\.2\.running_var "):
        hvd.check_in_sync(model)


@pytest.mark.parametrize("scheduled", [False, True])
@on_ranks(2, HOROVOD_CHECK_IN_SYNC_STEPS="2")
def test_steps_are_checked_where_the_setting_asks_for_it(scheduled):
    """Rank 1 has another learning rate: the check in the second step detects it before the models diverge far."""
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = StepLR(optimizer, 100) if scheduled else None  # wraps the optimizer's step
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def step():
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()

    for _ in range(3):
        step()
    optimizer.param_groups[0]["lr"] = 0.5 if hvd.rank() == 1 else 0.1
    with pytest.raises(OutOfSyncError, match=r"optimizer\.param_groups\[0\]\.lr is 0\.1 on rank 0 and 0\.5 on rank 1"):
        step()
    step()  # the fifth step
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2
