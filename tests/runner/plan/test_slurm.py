"""The nodes of a Slurm allocation, and how an agent is started on one."""

import sys

import pytest

from horovod.runner.base.job_result import LaunchError
from horovod.runner.plan import allocations
from horovod.runner.remote import routes

BATCH = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_TASKS_PER_NODE": "2(x2),1"}


def test_an_allocation_is_read_from_its_variables():
    assert allocations.allocation(BATCH) == allocations.Allocation("17", {"n1": 2, "n2": 2, "n3": 1})
    assert allocations.allocation({**BATCH, "SLURM_TASKS_PER_NODE": ""}).slots == {"n1": 1, "n2": 1, "n3": 1}
    assert allocations.allocation({**BATCH, "SLURM_TASKS_PER_NODE": "4"}).slots == {
        "n1": 1,
        "n2": 1,
        "n3": 1,
    }  # of a step
    assert allocations.allocation({}) is None
    assert allocations.allocation({"SLURM_JOB_ID": "17"}) is None
    with pytest.raises(LaunchError, match=r"SLURM_JOB_NODELIST, .*'n\[3-1\]'"):
        allocations.allocation({**BATCH, "SLURM_JOB_NODELIST": "n[3-1]"})


def test_slurm_output_is_parsed():
    assert allocations.nodes_of("RUNNING|n[1-2]\n", "17") == ["n1", "n2"]
    with pytest.raises(LaunchError, match=r"job 17 has no nodes \(state COMPLETING\)"):
        allocations.nodes_of("COMPLETING|\n", "17")
    with pytest.raises(LaunchError, match=r"\(state unknown\)"):
        allocations.nodes_of("", "17")
    states = "n1|mixed\nn2|draining\nn3|allocated*\nn4|down*\nn5|idle\nn5|drained@\nn6|fail\nn7|mixed$\nn8|completing"
    assert allocations.usable(states, [f"n{number}" for number in range(1, 10)]) == ["n1", "n3", "n7", "n8"]
    assert allocations.lines(["n2", "n9"], {"n1": 3, "n2": 2}, None) == "n2:2\nn9:3\n"
    assert allocations.lines(["n2", "n9"], {"n1": 3, "n2": 2}, 4) == "n2:4\nn9:4\n"


@pytest.mark.parametrize(
    ("message", "what", "again"),
    [
        ("srun: error: Unable to create step for job 17: Invalid job id specified", "the allocation has ended", False),
        ("srun: error: Requested node configuration is not available", "gives no step there", False),
        ("srun: error: Task launch failed: Socket timed out on send/recv operation", "cannot reach it", True),
        ("ModuleNotFoundError: No module named 'horovod'", "did not start: ModuleNotFoundError", False),
    ],
)
def test_steps_that_do_not_start_are_explained(message, what, again):
    text = f"srun: warning: cluster configuration lacks support for cpu binding\n{message}\n"
    failure = routes.explain(1, text, "n2", "17", sys.executable)
    assert what in failure.what
    assert failure.again == again
    assert "n2" in failure.advice or "job 17" in failure.advice
    assert "binding" not in failure.what + failure.advice
    assert routes.how_it_broke(True, 0, text.splitlines()).endswith(message)
