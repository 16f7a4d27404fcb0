"""Elastic jobs of PyTorch: workers are killed with -9 and others join, and the parameters are those of a run without
faults in which as many ranks took part in each step."""

import os
import signal
from pathlib import Path

import pytest

from horovod.runner.elastic.limits import Limits
from tests.runner.elastic.small_launcher import SmallLauncher

PROGRAM = Path(__file__).with_name("elastic_program.py")


# Who is killed, each time that three ranks train. The second job has newcomers too.
@pytest.mark.heavy
@pytest.mark.parametrize("victims", [(0,), (1, 0)], ids=["rank 0", "one, then rank 0"])
def test_no_step_is_lost_without_a_single_commit(victims):
    ranks = ["3", "2"] * len(victims)
    cooldown = (1, 1) if victims[1:] else None  # with nobody else to come, nobody comes
    limits = Limits(start=3, least=2, most=3, timeout=600)
    with SmallLauncher(limits, *ranks, cooldown=cooldown, program=PROGRAM) as job:

        def trains(count: int) -> bool:
            """So many ranks do, and have done 20 steps."""
            told = [[line[1] for line in job.lines[worker]] for worker in job.running()]
            return len(told) == count and all("begins" in words[:-20] for words in told)

        job.discover({"a": 3})
        for victim in victims:
            job.until(lambda: trains(3), 180)
            os.kill(job.processes[job.running()[victim]].pid, signal.SIGKILL)
            job.until(lambda: len(job.running()) == 2, 180)
        job.discover({"a": 2})  # two are the last: however long they take for their steps, nobody joins them
        job.until(lambda: job.end is not None, 180)
        assert job.end.success, job.said
        # Each has compared its parameters with those of a run without faults.
        assert len([line for lines in job.lines.values() for line in lines if line[1] == "ends"]) == 2
        for lines in job.lines.values():  # what survived has done each step once
            steps = [int(line[2]) for line in lines if line[1] == "step"]
            assert steps == list(range(steps[0], steps[0] + len(steps))) if steps else True, steps
