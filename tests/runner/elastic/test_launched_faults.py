"""Elastic jobs by `horovodrun` in which workers end in all ways, and while their ranks are being formed anew."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import horovod
from horovod.common.elastic import Checkpoint
from tests.runner.elastic.launched import ElasticJob, elastic_job
from tests.runner.launching import eventually
from tests.runner.test_starved import cgroup

PROGRAM = [sys.executable, str(Path(__file__).with_name("program.py"))]
COOLDOWN = ("--blacklist-cooldown-range", "1", "1")


def trains(job: ElasticJob, size: int) -> int:
    """Waits until so many ranks have begun together, and have done some steps since; the step that they began with."""

    def begun(rank: int) -> str:
        """With which step the rank has begun last, if it was in a job of that size, and has done some since."""
        words = job.words(str(rank))
        last = max((place for place, one in enumerate(words) if one[0] == "begins"), default=len(words))
        steps = sum(one[0] == "step" for one in words[last:])
        return words[last][1] if steps > 5 and words[last][2:4] == [str(rank), str(size)] else ""

    def together() -> bool:
        told = {begun(rank) for rank in range(size)}
        return len(told) == 1 and "" not in told

    job.until(together)
    return int(begun(0))


def ends(job: ElasticJob, stop: Path, size: int) -> None:
    stop.touch()
    assert job.end() == 0, job.shown()
    assert sum(words == ["ends"] for rank in range(size) for words in job.words(str(rank))) == size


def test_one_more_dies_while_ranks_are_formed_anew(tmp_path):
    stop = tmp_path / "stop"
    with elastic_job(tmp_path, "localhost:4", "-np", "4", "--min-np", "1", *PROGRAM, str(stop)) as job:
        trains(job, 4)
        (tmp_path / "stop.falls2").touch()
        job.kill("rank 1")
        job.until_said(r"rank 1 on host localhost failed: killed by signal 9 \(SIGKILL\)")
        job.until_said(r"3 ranks left")
        job.until_said(r"going on with 2 ranks")
        assert trains(job, 2) >= 5
        ends(job, stop, 2)


def test_a_newcomer_dies_while_it_joins(tmp_path):
    """The others have left their epoch for its sake."""
    stop = tmp_path / "stop"
    flags = ("-np", "2", "--min-np", "2", "--max-np", "3", *COOLDOWN)
    with elastic_job(tmp_path, "localhost:2", *flags, *PROGRAM, str(stop)) as job:
        trains(job, 2)
        (tmp_path / "stop.falls2").touch()
        job.hosts("localhost:3")
        job.until_said(r"rank 2 on host localhost failed: killed by signal 9 \(SIGKILL\)")
        job.until_said("3 ranks now; new: rank 2 on host localhost")  # another one
        assert trains(job, 3) >= 5
        ends(job, stop, 3)


@pytest.mark.heavy
def test_slots_are_found_while_ranks_are_formed_anew(tmp_path):
    stop = tmp_path / "stop"
    with elastic_job(tmp_path, "localhost:3", "-np", "3", "--min-np", "2", *COOLDOWN, *PROGRAM, str(stop)) as job:
        trains(job, 3)
        (tmp_path / "stop.late0").touch()
        job.kill("rank 1")
        job.until_said("rank 1 on host localhost failed")
        job.hosts("localhost:5")
        job.until(lambda: sum("new worker" in line and "has pid" in line for line in job.err) == 3)
        (tmp_path / "stop.late0").unlink()
        job.until_said("5 ranks now")
        assert trains(job, 5) >= 5
        ends(job, stop, 5)


def by_signal(job: ElasticJob, _: Path) -> None:
    job.kill("rank 1", signal.SIGTERM)


def out_of_memory(job: ElasticJob, stop: Path) -> None:
    Path(f"{stop}.full1").touch()


@pytest.mark.parametrize(
    ("end", "chaos", "said"),
    [
        pytest.param(by_signal, "", r"killed by signal 15 \(SIGTERM\)", id="SIGTERM"),
        pytest.param(None, "exit rank=1 step=20 code=3", r"exit code 3", id="exit", marks=pytest.mark.heavy),
        pytest.param(out_of_memory, "", r"exit code 1 \(MemoryError\)", id="MemoryError", marks=pytest.mark.heavy),
    ],
)
def test_a_worker_ends(tmp_path, end: Callable[[ElasticJob, Path], None] | None, chaos, said):
    stop = tmp_path / "stop"
    flags = ("-np", "3", "--min-np", "2", *(("--chaos", chaos) if chaos else ()))
    with elastic_job(tmp_path, "localhost:3", *flags, *PROGRAM, str(stop)) as job:
        if end is not None:
            trains(job, 3)
            end(job, stop)
        job.until_said(f"rank 1 on host localhost failed: {said}; 2 ranks left")
        assert trains(job, 2) >= 5
        ends(job, stop, 2)


@pytest.mark.heavy
def test_the_kernel_ends_a_worker_that_has_no_memory_left(tmp_path):
    stop = tmp_path / "stop"
    flags = ("-np", "3", "--min-np", "2")
    with (
        cgroup("memory", "memory.limit_in_bytes", str(256 << 20)) as group,
        elastic_job(tmp_path, "localhost:3", *flags, *PROGRAM, str(stop)) as job,
    ):
        trains(job, 3)
        asks = tmp_path / "asks"
        asks.write_text(str(group))
        asks.rename(tmp_path / "stop.starved1")
        job.until_said(r"failed: killed by signal 9 \(SIGKILL\), perhaps because .* ran out of memory; 2 ranks left$")
        job.until_said("going on with 2 ranks$")
        assert trains(job, 2) >= 5
        ends(job, stop, 2)


@pytest.mark.heavy
def test_a_launcher_that_was_killed_is_started_again(tmp_path):
    """With another number of ranks; they go on from the checkpoint."""
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
        assert ["resumes", str(newest)] in job.words("0")
        for rank in ("0", "1"):
            assert [words for words in job.words(rank) if words[0] == "adapts"] == [["adapts", str(newest), "2"]]
        job.until(lambda: checkpoint.steps()[0] > newest)
        # A rank is lost then: the others have the state, and nobody reads the checkpoint again.
        job.kill("rank 0")
        assert trains(job, 1) > newest
        job.until(lambda: checkpoint.steps()[0] > newest + 50)
        ends(job, stop, 1)
    assert len(checkpoint.steps()) == 3, "as many as are kept"


@pytest.mark.heavy
def test_a_function_whose_hosts_a_script_finds(tmp_path):
    def work(x, stop):
        import time

        from horovod.common import faces
        from horovod.common.basics import HorovodBasics
        from horovod.common.elastic import ObjectState, run_fn
        from horovod.common.objects import allgather_object, broadcast_object

        hvd = HorovodBasics("tests")
        hvd.init()
        face = faces.named("tests")

        def broadcast(obj, root_rank=0):
            return broadcast_object(obj, root_rank, "broadcast", face=face)

        def train(state):
            over = False
            while not over:  # a slot more is found on the way
                if state.step == 10 and hvd.rank() == 0:
                    with open(stop, "w") as file:
                        file.write("more")
                over = all(allgather_object(hvd.size() == 3, "over", face=face))
                state.step += 1
                state.commit()
                time.sleep(0.01)
            return x, hvd.rank(), hvd.size()

        def reset():
            hvd.shutdown()
            hvd.init()

        return run_fn(train, reset)(ObjectState(broadcast, hvd.rank, step=0))

    script, more = tmp_path / "hosts.sh", tmp_path / "more"
    script.write_text(f"#!/bin/sh\nif [ -e {more} ]; then echo localhost:3; else echo localhost:2; fi\n")
    script.chmod(0o755)
    given = {"num_proc": 2, "min_num_proc": 2, "max_num_proc": 3, "host_discovery_script": str(script)}
    assert horovod.run(work, (7, os.fspath(more)), **given) == [(7, 0, 3), (7, 1, 3)]
