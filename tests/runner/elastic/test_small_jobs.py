"""Elastic jobs of real processes with a minimal launcher: membership, the store and ``init`` together."""

import os
import signal
import time

import pytest

import horovod
from horovod.runner.elastic.limits import Limits
from tests.runner.elastic.small_launcher import SmallLauncher


@pytest.mark.heavy
def test_ranks_die_and_others_join(tmp_path):
    stop = tmp_path / "stop"
    with SmallLauncher(Limits(start=3, least=2, most=5, timeout=600), str(stop)) as job:

        def trains(*workers):
            """Wait until these workers, by rank, have taken a step together; return the first such epoch."""

            def together():
                if job.running()[: len(workers)] != list(workers):
                    since.clear()
                    return False
                since.setdefault("at", time.monotonic())
                return all(job.steps(worker)[-1:] > [(since["at"], 0)] for worker in job.running())

            since = {}
            job.until(together)

        job.discover({"a": 3})
        trains(0, 1, 2)
        # A child forked by one of them inherits none of its threads.
        (tmp_path / "stop.fork0").touch()
        job.until(lambda: any(line[1:] == ["forked", "7"] for line in job.lines[0]))
        # One worker is killed: the others continue, and no step is lost.
        last = min(job.steps(worker)[-1][1] for worker in (0, 2))
        os.kill(job.processes[1].pid, signal.SIGKILL)
        trains(0, 2)
        begun = [line[2:] for line in job.lines[2] if line[1] == "begins"][1]
        assert int(begun[0]) >= last
        assert begun[1:] == ["1", "2", "1", "2"], "rank and size, told to the environment as well"
        # A new worker replaces it when the host's cooldown is over, and has the state of the others.
        trains(0, 2, 3)
        begun = next(line for line in job.lines[3] if line[1] == "begins")
        assert int(begun[2]) > last
        # Rank 0 is killed.
        os.kill(job.processes[0].pid, signal.SIGKILL)
        trains(2, 3)
        # One more host.
        job.discover({"a": 3, "b": 1})
        job.until(lambda: len(job.running()) == 4 and {"a", "b"} == {w.host for w in job.membership.members})
        trains(2, 3)
        # A worker of another version is rejected.
        other = len(job.processes)
        (tmp_path / f"stop.old{other}").touch()
        job.discover({"a": 3, "b": 1, "c": 1})
        job.until(lambda: other in job.processes and job.processes[other].stdout.closed)
        (refused,) = (text for text in job.said if "refused" in text)
        assert f"has horovod 0.0.1, but the launcher has horovod {horovod.__version__}" in refused
        assert "host c gets no new workers" in " ".join(job.said)
        assert "is not let into the job: it has horovod 0.0.1" in job.errors(other)
        assert "Traceback" not in job.errors(other)
        # A worker with a different state is the only one that ends.
        other = len(job.processes)
        (tmp_path / f"stop.other{other}").touch()
        job.discover({"a": 3, "b": 1, "d": 1})
        job.until(lambda: other in job.processes and job.processes[other].stdout.closed)
        assert "has other, which rank 0 has not" in job.errors(other)
        trains(2, 3)
        # A worker that fails to join for a local reason ends without another attempt; the others continue.
        other = len(job.processes)
        (tmp_path / f"stop.poor{other}").touch()
        job.discover({"a": 3, "b": 1, "c": 1, "e": 1})
        job.until(lambda: other in job.processes and job.processes[other].stdout.closed)
        assert "could not join: Cannot allocate memory" in job.errors(other)
        trains(2, 3)
        stop.touch()
        job.until(lambda: job.end is not None)
        assert job.end.success
        assert not [text for text in job.said if "abandoned" in text]


@pytest.mark.heavy
def test_what_no_link_tells(tmp_path):
    """A host is lost while its connections stay open and silent; a rank learns of another's end while it computes."""
    stop = tmp_path / "stop"
    with SmallLauncher(Limits(start=4, least=1, timeout=600), str(stop), cooldown=None) as job:
        job.discover({"a": 2, "b": 2})
        job.until(lambda: job.running() == [0, 1, 2, 3] and all(job.steps(worker) for worker in job.running()))
        since = time.monotonic()
        job.lose("b")
        job.until(lambda: job.running() == [0, 1] and all(job.steps(worker)[-1:] > [(since, 0)] for worker in (0, 1)))
        assert time.monotonic() - since < 200, "long before anything else would have ended their wait"
        assert any(line[1] == "failed" and "host-b-is-lost" in line[2] for line in job.lines[0]), job.lines[0]
        assert not [text for text in job.said if "come back" in text]
        # Another worker; then a rank dies while the others compute for long: their engines notice and report
        # it.
        job.discover({"a": 3})
        job.until(lambda: len(job.running()) == 3 and all(job.steps(worker) for worker in job.running()))
        busy = tmp_path / "stop.busy"
        busy.write_text("0 1")
        job.until(lambda: all(job.lines[worker][-1][1:] == ["busy"] for worker in (0, 1)))  # the third worker waits
        os.kill(job.processes[job.running()[2]].pid, signal.SIGKILL)
        job.until(lambda: all(job.membership.workers.find(worker).noticed_end for worker in (0, 1)))
        busy.unlink()
        job.until(lambda: job.running() == [0, 1])
        stop.touch()
        job.until(lambda: job.end is not None)
        assert job.end.success
