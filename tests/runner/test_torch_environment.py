"""horovodrun starts programs for torch.distributed."""

import json

import pytest

from tests.runner.launching import python, run_job

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
SHOW = python(f"import json, os; print(json.dumps([os.environ.get(name) for name in {NAMES}]))")
CLEAR = dict.fromkeys(NAMES)


def variables(arguments, environment=None):
    done = run_job([*arguments, *SHOW], environment={**CLEAR, **(environment or {})})
    assert done.code == 0, done.err
    return sorted((json.loads(line.partition(":")[2]) for line in done.out.splitlines()), key=str)


def test_workers_get_the_variables():
    one, two = variables(["-np", "2"])
    assert (one[:6], two[:6]) == (["0", "2", "0", "2", "0", "127.0.0.1"], ["1", "2", "1", "2", "0", "127.0.0.1"])
    assert one[6] == two[6]
    assert 1024 < int(one[6]) < 65536


def test_port_and_variables_of_the_user():
    (one,) = variables(["-np", "1", "--torch-distributed-port", "29511"], {"MASTER_ADDR": "localhost", "RANK": "7"})
    assert one == ["0", "1", "0", "1", "0", "localhost", "29511"]


@pytest.mark.heavy
def test_a_program_with_gloo_runs_unchanged():
    code = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(x)
print(x.item())
dist.destroy_process_group()
"""
    done = run_job(["-np", "2", *python(code)], environment=CLEAR)
    assert done.code == 0, done.err
    assert done.out.count("3.0") == 2
