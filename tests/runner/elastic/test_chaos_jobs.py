"""Fault injection in elastic jobs: each fault of --chaos happens once, and the job continues."""

import re
import sys
from pathlib import Path

import pytest

from tests.runner.elastic.launched import elastic_job

PROGRAM = [sys.executable, str(Path(__file__).with_name("program.py"))]
CHAOS = "kill rank=1 step=20; stop rank=0 step=60 for=300ms; raise rank=2 step=500; slow link=0-1 by=5ms"


@pytest.mark.heavy
def test_ranks_execute_the_planned_faults(tmp_path):
    stop = tmp_path / "stop"
    flags = ("-np", "3", "--min-np", "2", "--blacklist-cooldown-range", "1", "1", "--chaos", CHAOS, "--chaos-report")
    (tmp_path / "stop.pace2").touch()  # the replacement of a lost rank joins long before step 500
    with elastic_job(tmp_path, "localhost:3", *flags, *PROGRAM, str(stop)) as job:
        job.until_line(r"rank 1 on host localhost failed: killed by signal 9")
        job.until_line(
            r"rank 2 on host localhost failed: exit code 1 \(horovod.common.faults.ChaosError: raise rank=2 step=500\)"
        )
        job.until(lambda: sum("3 ranks now" in line for line in job.err) == 2)
        steps = len(job.lines("0"))
        job.until(lambda: len(job.lines("0")) > steps + 20)
        stop.touch()
        assert job.end() == 0, job.shown()
        assert any("chaos: 3 events (1 kill, 1 stop, 1 raise), 2 detected, 2 recovered" in line for line in job.err)
        again = [line for line in job.err if "chaos: steps that are done again: " in line]
        assert len(again) == 2, "a rank of each epoch after a failure says so"
        steps = sum(int(line.split()[-1]) for line in again)
        assert f"horovodrun: chaos: {steps} {'step' if steps == 1 else 'steps'} done again" in job.err
        assert any(re.search(r"chaos: recovered after p50 \d", line) for line in job.err)
        job.err = [line for line in job.err if line not in again]
        job.err = [line for line in job.err if not line.startswith("horovodrun: chaos: ")]
        lines = [line for line in job.err if "chaos: " in line and "failed" not in line and "Error" not in line]
        reported = {line.split("chaos: ")[1] for line in lines}
        assert len(lines) == len(reported) == 4, lines
        assert reported == {
            "kill rank=1 step=20",
            "stop rank=0 step=60 for=300ms",
            "raise rank=2 step=500",
            "slow link=0-1 by=5ms (not done: ranks 0 and 1 are on one machine, with no network between them)",
        }
        assert not any("chaos: kill" in line for line in job.lines("2"))
