"""Elastic jobs by `horovodrun` whose workers end in every way, also while a new epoch is forming."""

import sys
from pathlib import Path

import pytest

from horovod.common.elastic import Checkpoint
from tests.runner.elastic.launched import ElasticJob, elastic_job
from tests.runner.launching import eventually

PROGRAM = [sys.executable, str(Path(__file__).with_name("program.py"))]


def trains(job: ElasticJob, size: int) -> int:
    """Wait until so many ranks have begun together and taken some steps since; return the step they began with."""

    def last_start(rank: int) -> str:
        """Return the step with which the rank last began, if its job had that size and it took steps since."""
        lines = job.lines(str(rank))
        last = max((place for place, one in enumerate(lines) if one[0] == "begins"), default=len(lines))
        steps = sum(one[0] == "step" for one in lines[last:])
        return lines[last][1] if steps > 5 and lines[last][2:4] == [str(rank), str(size)] else ""

    def all_in_one_world() -> bool:
        worlds = {last_start(rank) for rank in range(size)}
        return len(worlds) == 1 and "" not in worlds

    job.until(all_in_one_world)
    return int(last_start(0))


def ends(job: ElasticJob, stop: Path, size: int) -> None:
    stop.touch()
    assert job.end() == 0, job.shown()
    assert sum(lines == ["ends"] for rank in range(size) for lines in job.lines(str(rank))) == size


@pytest.mark.heavy
def test_a_killed_launcher_is_restarted(tmp_path):
    """It restarts with another number of ranks, which resume from the checkpoint."""
    stop, directory = tmp_path / "stop", tmp_path / "checkpoints"
    checkpoint = Checkpoint(directory)
    command = [*PROGRAM, str(stop), str(directory)]
    with elastic_job(tmp_path, "localhost:3", "-np", "3", "--min-np", "1", *command) as job:
        job.until(lambda: len(checkpoint.steps()) > 1)
        job.job.process.kill()
        eventually(lambda: job.job.left() == [], 120, "nothing of the job is left")
    newest = checkpoint.load().step
    assert newest >= 20
    with elastic_job(tmp_path, "localhost:2", "-np", "2", "--min-np", "1", "--resume", *command) as job:
        assert trains(job, 2) == newest
        assert ["resumes", str(newest)] in job.lines("0")
        for rank in ("0", "1"):
            assert [lines for lines in job.lines(rank) if lines[0] == "adapts"] == [["adapts", str(newest), "2"]]
        job.until(lambda: checkpoint.steps()[0] > newest)
        # A rank is lost then: the others have the state, so no rank reads the checkpoint again.
        job.kill("rank 0")
        assert trains(job, 1) > newest
        job.until(lambda: checkpoint.steps()[0] > newest + 50)
        ends(job, stop, 1)
    assert len(checkpoint.steps()) == 3, "as many as are kept"
