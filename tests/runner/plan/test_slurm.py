"""The nodes of a Slurm allocation, and how an agent is started on one."""

import itertools
import sys

import pytest

from horovod.runner.base.errors import LaunchError
from horovod.runner.elastic import slurm_nodes
from horovod.runner.plan import allocations
from horovod.runner.remote import routes
from tests.runner.launching import executable

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


def test_what_slurm_prints_is_understood():
    assert allocations.nodes_of("RUNNING|n[1-2]\n", "17") == ["n1", "n2"]
    with pytest.raises(LaunchError, match=r"job 17 has no nodes \(state COMPLETING\)"):
        allocations.nodes_of("COMPLETING|\n", "17")
    with pytest.raises(LaunchError, match=r"\(state unknown\)"):
        allocations.nodes_of("", "17")
    states = "n1|mixed\nn2|draining\nn3|allocated*\nn4|down*\nn5|idle\nn5|drained@\nn6|fail\nn7|mixed$\nn8|completing"
    assert allocations.usable(states, [f"n{number}" for number in range(1, 10)]) == ["n1", "n3", "n7", "n8"]
    assert allocations.lines(["n2", "n9"], {"n1": 3, "n2": 2}, None) == "n2:2\nn9:3\n"
    assert allocations.lines(["n2", "n9"], {"n1": 3, "n2": 2}, 4) == "n2:4\nn9:4\n"


def test_an_agents_step_has_options_of_its_own():
    environ = {**BATCH, "SLURM_CONF": "/etc/slurm.conf", "SRUN_CPUS_PER_TASK": "2", "PMI_RANK": "0", "PATH": "/bin"}
    command = routes.srun_command("n2", "17", "/opt/python", environ)
    words = command[: command.index("--")]
    unset = [name for word, name in itertools.pairwise(words) if word == "-u"]
    assert unset == ["PMI_RANK", "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE", "SRUN_CPUS_PER_TASK"]
    assert {"--jobid=17", "--nodelist=n2", "--no-kill", "--overlap", "--ntasks=1"} <= set(words)
    assert command[command.index("--") + 1] == "/opt/python"


@pytest.mark.parametrize(
    ("said", "what", "again"),
    [
        ("srun: error: Unable to create step for job 17: Invalid job id specified", "the allocation has ended", False),
        ("srun: error: Requested node configuration is not available", "gives no step there", False),
        ("srun: error: Task launch failed: Socket timed out on send/recv operation", "cannot reach it", True),
        ("ModuleNotFoundError: No module named 'horovod'", "did not start: ModuleNotFoundError", False),
    ],
)
def test_a_step_that_does_not_begin_is_explained(said, what, again):
    text = f"srun: warning: cluster configuration lacks support for cpu binding\n{said}\n"
    failure = routes.explain(1, text, "n2", "17", sys.executable)
    assert what in failure.what
    assert failure.again == again
    assert "n2" in failure.advice or "job 17" in failure.advice
    assert "binding" not in failure.what + failure.advice
    assert routes.how_it_broke(True, 0, text.splitlines()).endswith(said)


def test_slurm_programs_have_deadlines(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    slow = executable(tmp_path / "squeue", "#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(LaunchError, match=r"squeue did not answer within 0\.2 s; is Slurm's controller up\?"):
        slurm_nodes.ask("squeue", seconds=0.2)
    slow.write_text("#!/bin/sh\necho slurm_load_jobs error: Invalid job id specified >&2\nexit 1\n")
    for name, text in BATCH.items():
        monkeypatch.setenv(name, text)
    assert slurm_nodes.main() == 1
    assert capsys.readouterr().err == "squeue failed: slurm_load_jobs error: Invalid job id specified\n"
    with pytest.raises(LaunchError, match="no-such-program cannot be run: No such file or directory"):
        slurm_nodes.ask("no-such-program")
    monkeypatch.delenv("SLURM_JOB_ID")
    assert slurm_nodes.main() == 1
    assert "this is not a Slurm allocation" in capsys.readouterr().err
