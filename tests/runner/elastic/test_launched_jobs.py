"""Elastic jobs by `horovodrun`: workers die and join, and the launcher reports it."""

import os
import signal
import sys
from pathlib import Path

import pytest

import horovod
from tests.runner.elastic.launched import elastic_job
from tests.runner.launching import eventually, executable

PROGRAM = [sys.executable, str(Path(__file__).with_name("program.py"))]
COOLDOWN = ("--blacklist-cooldown-range", "1", "1")


@pytest.mark.heavy
def test_a_killed_worker_is_replaced_by_others(tmp_path):
    stop, logs = tmp_path / "stop", tmp_path / "logs"
    flags = ("-np", "3", "--min-np", "2", "--max-np", "4", *COOLDOWN, "--output-filename", str(logs))
    with elastic_job(tmp_path, "localhost:3", *flags, *PROGRAM, str(stop)) as job:
        job.until(lambda: len(job.lines("2")) > 5)
        assert [line[0] for line in job.lines("0")][:2] == ["begins", "step"]
        job.kill("rank 1")
        job.until_line(r"rank 1 on host localhost failed: killed by signal 9 \(SIGKILL\).*; 2 ranks left")
        job.until_line("host localhost gets no new workers for 1 s")
        # The worker that was rank 2 is rank 1 now, and its lines have the new prefix.
        job.until(lambda: ["begins"] + ["1", "2"] * 2 in [w[:1] + w[2:] for w in job.lines("1")])
        # A new worker replaces it after the cooldown, with the state of the others.
        job.until_line("3 ranks now; new: rank 2 on host localhost")
        job.until(lambda: [int(w[1]) > 3 and w[2:4] for w in job.lines("2") if w[0] == "begins"][1:] == [["2", "3"]])
        # One more slot.
        job.hosts("localhost:4")
        job.until_line("4 ranks now; new: rank 3 on host localhost")
        job.until(lambda: len(job.lines("3")) > 3)
        # One slot fewer: the worker without a slot leaves with one line.
        job.hosts("localhost:3")
        job.until_line("rank 3 ended: exit code 1")
        steps = len(job.lines("1"))
        job.until(lambda: len(job.lines("1")) > steps + 20)
        stop.touch()
        assert job.end() == 0, job.shown()
        line = "[3]<stderr>:horovod: rank 3 on host localhost leaves the job: its host has no slot for it any more"
        assert job.err.count(line) == 1
        assert sum("leaves" in each for each in job.err) == 1
        assert sum(line == ["ends"] for rank in "012" for line in job.lines(rank)) == 3
        assert "failed first" not in job.shown()
        assert "Traceback" not in job.shown()
    assert sorted(os.listdir(logs)) == ["rank.0", "rank.1", "rank.2", "worker.3", "worker.4"]
    assert "ends" in (logs / "worker.3" / "stdout").read_text()


def test_training_outside_of_run_is_reported(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal\nfrom horovod.common import basics, frontends, objects\n"
        "hvd = basics.HorovodBasics('tests')\nhvd.init()\n"
        "for step in range(2):\n    objects.allgather_object(0, 'step', frontend=frontends.named('tests'))\n"
        "    if hvd.rank() == 1:\n        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with elastic_job(tmp_path, "localhost:3", "-np", "3", "--min-np", "1", sys.executable, str(program)) as job:
        assert job.end() == 137, job.shown()
        assert (
            "horovodrun: no worker is left that holds the state of the training (2 workers ended with "
            "HorovodInternalError, after which hvd.elastic.run goes on: is the training in a function that is given to "
            "it?)"
        ) in job.err


@pytest.mark.heavy
def test_an_interrupt_lets_ranks_finish(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, time\nfrom horovod.common import basics\nhvd = basics.HorovodBasics('tests')\n"
        "hvd.init()\ntry:\n    print('ready', flush=True)\n    time.sleep(600)\n"
        "finally:\n    time.sleep(2)\n    print('saved', flush=True)\n"
    )
    command = ["sh", "-c", f"{sys.executable} {program}; :"]  # the shell ends first
    with elastic_job(tmp_path, "localhost:2", "-np", "2", "--min-np", "1", *command) as job:
        job.until(lambda: sum("ready" in line for line in job.out) == 2)
        job.job.process.send_signal(signal.SIGINT)
        assert job.end() == 130
        assert sorted(line for line in job.out if "saved" in line) == ["[0]<stdout>:saved", "[1]<stdout>:saved"], (
            job.shown()
        )


@pytest.mark.heavy
def test_a_worker_is_stopped_and_the_launcher_killed(tmp_path):
    flags = ("-np", "2", "--min-np", "1")
    with elastic_job(tmp_path, "localhost:2", *flags, *PROGRAM, str(tmp_path / "stop")) as job:
        job.until(lambda: len(job.lines("1")) > 3)
        job.kill("rank 1", signal.SIGSTOP)
        job.until_line(
            r"rank 1 on host localhost failed: killed, since it has been stopped \(SIGSTOP\?\) for 10 s; 1 rank left$"
        )
        job.until_line("going on with 1 rank$")
        job.until(lambda: ["0", "1"] in [w[2:4] for w in job.lines("0") if w[0] == "begins"])
        job.job.process.kill()
        eventually(lambda: job.job.left() == [], 120, "nothing of the job is left")


def test_run_with_host_discovery_script(tmp_path):
    def work(x):
        from horovod.common import frontends
        from horovod.common.basics import HorovodBasics
        from horovod.common.elastic import ObjectState, run_fn
        from horovod.common.objects import broadcast_object

        hvd = HorovodBasics("tests")
        hvd.init()

        def broadcast(obj, root_rank=0):
            return broadcast_object(obj, root_rank, "broadcast", frontend=frontends.named("tests"))

        def train(state):
            while state.step < 40:
                if state.step == 10 and os.environ["HOROVOD_WORKER"] == "1":
                    os.kill(os.getpid(), signal.SIGKILL)
                broadcast(state.step)
                state.step += 1
                state.commit()
            return x, state.step, hvd.rank(), hvd.size()

        def reset():
            hvd.shutdown()
            hvd.init()

        return run_fn(train, reset)(ObjectState(broadcast, hvd.rank, step=0))

    script = executable(tmp_path / "hosts.sh", "#!/bin/sh\necho localhost:1\necho 127.0.0.1:2\n")
    results = horovod.run(work, (7,), num_proc=3, min_num_proc=2, host_discovery_script=str(script))
    assert results == [(7, 40, 0, 2), (7, 40, 1, 2)]
