"""Variables of torch.distributed for workers that are processes of another program."""

from dataclasses import replace

from horovod.runner.external_workers import assignment, workers
from horovod.runner.plan.hosts import Host, assign


def test_variables_of_workers():
    slots = assign([Host("10.0.0.1-abc", 1), Host("10.0.0.2", 1)], 2)
    first = replace(assignment.describe(), free_port=12345)
    told = workers.of_torch(slots[1], slots, first, {})
    assert (told["RANK"], told["GROUP_RANK"], told["MASTER_ADDR"], told["MASTER_PORT"]) == (
        "1",
        "1",
        "10.0.0.1",
        "12345",
    )
    fixed = workers.of_torch(slots[0], slots, first, {"HOROVOD_TORCH_DISTRIBUTED_PORT": "7"})
    assert fixed["MASTER_PORT"] == "7"
    assert workers.of_torch(slots[0], slots, first, {"HOROVOD_TORCH_DISTRIBUTED_ENV": "0"}) == {}
