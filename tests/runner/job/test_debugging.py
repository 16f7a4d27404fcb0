"""A debugger in one rank."""

import sys

import pytest

from horovod.runner.base.job_result import LaunchError
from horovod.runner.command import cli
from horovod.runner.job import terminal as debugging
from horovod.runner.plan import hosts
from tests.runner.launching import run_job
from tests.runner.output.test_terminal import LAUNCH, terminal

SCRIPT = """
from horovod.common.basics import HorovodBasics
hvd = HorovodBasics("tests")
secret = 41
breakpoint()
hvd.init()
print("secret", secret)
hvd.shutdown()
"""


def test_a_debugger_in_rank_1_has_the_terminal(tmp_path):
    """Input reaches it, prompts appear immediately, and the other rank waits beyond its timeout."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    quick = "HOROVOD_START_TIMEOUT=1 HOROVOD_STALL_CHECK_TIME_SECONDS=1 HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=1"
    command = f"{quick} {LAUNCH} -np 2 --debug-rank 1 {sys.executable} {script}; echo code $?"
    with terminal(command) as (type_keys, until):
        until(b"(Pdb) ")
        type_keys(b"p secret + 100\n")
        until(b"141")
        until(b"(Pdb) ")
        type_keys(b"import time; time.sleep(2.5); secret = 7\n")
        until(b"(Pdb) ")
        type_keys(b"c\n")
        until(b"secret 7")
        until(b"code 0")


def test_without_a_terminal_the_job_runs_all_the_same():
    code = "import os; breakpoint() if os.environ['HOROVOD_RANK'] == '1' else print(os.environ['HOROVOD_DEBUG_RANK'])"
    done = run_job(["-np", "2", "--debug-rank", "0", sys.executable, "-c", code])
    assert (done.code, done.out) == (0, "[0]<stdout>:0\n")
    assert "rank 0 cannot be given a terminal, since there is none here: breakpoint() finds no input" in done.err


def test_rank_with_the_terminal():
    slots = hosts.assign([hosts.Host("localhost", 1), hosts.Host("192.0.2.1", 1)], 2)
    assert debugging.place(0, slots, "/dev/pts/3") == debugging.Debugged(0, "/dev/pts/3")
    other = debugging.place(1, slots, "/dev/pts/3")
    assert other.terminal == ""
    assert "rank 1 is on host 192.0.2.1, which does not have this terminal" in other.remark
    assert debugging.check(-1, slots) is None
    with pytest.raises(LaunchError, match=r"HOROVOD_DEBUG_RANK\) must be a rank from 0 to 1, or -1 for none, got 2"):
        debugging.check(2, slots)
    namespace, command = cli.parse(["-np", "2", "x"])
    assert cli.settings(namespace, command, {"HOROVOD_DEBUG_RANK": "1"}).debug_rank == 1
    namespace, command = cli.parse(["-np", "2", "--mpi", "--debug-rank", "1", "x"])
    with pytest.warns(UserWarning, match="no terminal under mpirun"):
        cli.settings(namespace, command, {})
