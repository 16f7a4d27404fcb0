"""The device of a rank, among those that the Trainer lists."""

import pytest
import torch

from horovod.torch.lightning import own_device

CPU, GPUS = torch.device("cpu"), [torch.device("cuda", number) for number in range(4)]


@pytest.mark.parametrize(
    ("environ", "local_rank", "local_size", "gpus", "own"),
    [
        ([CPU], 3, 4, 0, CPU),
        ([CPU] * 4, 3, 4, 0, CPU),
        (GPUS[:1], 2, 4, 4, GPUS[2]),  # devices=1
        (GPUS[:1], 2, 4, 1, GPUS[0]),  # --gpus-per-worker 1: each rank sees its own
        (GPUS, 1, 2, 4, GPUS[1]),
        (GPUS[2:], 1, 2, 4, GPUS[3]),
        (GPUS[3:], 0, 1, 4, GPUS[3]),
    ],
)
def test_each_rank_has_its_own_device(environ, local_rank, local_size, gpus, own):
    assert own_device(environ, local_rank, local_size, gpus) == own


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ([CPU] * 3, "the Trainer's devices must be .*, got cpu, cpu, cpu for 2 ranks on this host"),
        (GPUS[3:], "devices must be 1, 'auto' or, for GPUs, as many as this host has ranks, got cuda:3 for"),
        ([torch.device("meta")], "devices must be of CPU or CUDA, got meta for"),
    ],
)
def test_mismatched_devices_are_named(environ, message):
    with pytest.raises(ValueError, match=message):
        own_device(environ, 1, 2, 4)
