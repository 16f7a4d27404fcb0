"""Variables of torch.distributed."""

from horovod.runner.plan import torch_environment
from horovod.runner.plan.hosts import Host, assign


def test_each_worker_gets_its_place():
    slots = assign([Host("a", 2), Host("b", 1)], 3)
    hosts = [slot.hostname for slot in slots]
    master = torch_environment.master("10.0.0.1", 29500, {})
    told = [torch_environment.variables(slot, hosts, master) for slot in slots]
    assert [(one["RANK"], one["LOCAL_RANK"], one["LOCAL_WORLD_SIZE"], one["GROUP_RANK"]) for one in told] == [
        ("0", "0", "2", "0"),
        ("1", "1", "2", "0"),
        ("2", "0", "1", "1"),
    ]
    assert {(one["WORLD_SIZE"], one["MASTER_ADDR"], one["MASTER_PORT"]) for one in told} == {("3", "10.0.0.1", "29500")}


def test_the_users_address_and_port_take_precedence():
    given = {"MASTER_PORT": "1234"}
    assert torch_environment.master("h", 1, given) == {"MASTER_ADDR": "h", "MASTER_PORT": "1234"}
    assert torch_environment.master("h", 1, {**given, "MASTER_ADDR": "me"}) == {**given, "MASTER_ADDR": "me"}
