import io
import json
import os
import re
import signal
import threading
import time

import pytest

from horovod.runner.cluster import Call, JobOptions, run_elastic
from horovod.runner.function.outcome import WorkerError
from horovod.runner.plan.settings import ElasticSettings


def train(folder, until):
    """Train until the number of ranks has changed ``until`` - 1 times, with a file for each step."""
    import horovod.numpy as hvd

    hvd.init()
    state = hvd.elastic.ObjectState(step=0, sizes=[])

    @hvd.elastic.run
    def run(state):
        for _ in range(3000):  # a minute
            size = int(hvd.allreduce(1, op=hvd.Sum, name="size"))
            state.step += 1
            if not state.sizes or state.sizes[-1] != size:
                state.sizes.append(size)
            with open(f"{folder}/step.{os.getpid()}", "w") as file:
                json.dump([state.step, size, hvd.rank(), hvd.local_rank(), hvd.local_size(), time.time()], file)
            if len(state.sizes) >= until:
                return state.sizes, hvd.rank(), hvd.local_rank()
            time.sleep(0.02)
            state.commit()
        raise AssertionError(f"the ranks were {state.sizes}")

    return run(state)


def seen(folder, size, seconds=30):
    """Wait until so many ranks have taken a step after a committed one."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for file in folder.glob("step.*"):
            try:
                step = json.loads(file.read_text())
            except ValueError:
                continue
            if step[0] > 1 and step[1] == size:
                return step
        time.sleep(0.02)
    raise AssertionError(f"no step of {size} ranks")


def test_a_task_is_killed_and_another_joins(tasks, gathering, tmp_path):
    for number in range(3):
        tasks.start(gathering.ticket, number)
    noticed = []

    def act():
        seen(tmp_path, 3)
        killed = time.time()
        os.kill(tasks.started[1].pid, signal.SIGKILL)
        noticed.append(seen(tmp_path, 2)[-1] - killed)
        tasks.start(gathering.ticket, 7)

    acting = threading.Thread(target=act, daemon=True)
    acting.start()
    err = io.StringIO()
    options = JobOptions(start_timeout=30, stdout=io.StringIO(), stderr=err)
    results = run_elastic(gathering, Call(train, (str(tmp_path), 3)), ElasticSettings(3, 2, 3), options)
    acting.join(60)
    assert [rank for _, rank, _ in results] == [0, 1]
    assert [local for *_, local in results] == [0, 1]
    assert results[0][0] == [3, 2, 3]
    assert noticed[0] < 5
    output = err.getvalue()
    assert re.search(r"host \S+, task 1 is lost: the connection to its agent broke", output)
    assert re.search(r"failed: its host is lost; 2 ranks left", output)
    assert "gets no new workers" not in output  # a lost task never returns
    assert {number: code for number, (code, _) in tasks.end().items()} == {0: 0, 1: -signal.SIGKILL, 2: 0, 7: 0}


def fail_always():
    raise ValueError("never")


@pytest.mark.heavy
def test_slots_of_failed_workers_are_not_reused_and_the_job_ends(tasks, gathering):
    for number in range(2):
        tasks.start(gathering.ticket, number)
    options = JobOptions(start_timeout=30, stdout=io.StringIO(), stderr=io.StringIO())
    with pytest.raises(WorkerError, match="never") as caught:
        run_elastic(gathering, Call(fail_always), ElasticSettings(2, 1, 2), options)
    assert isinstance(caught.value, ValueError), "no epoch has been formed, and its class is known all the same"
    assert (caught.value.args, type(caught.value.cause)) == (("never",), ValueError)
    assert re.fullmatch(r"\S+, task [01]", caught.value.host)
    tasks.end()


def test_too_few_processes_are_named(tasks, gathering):
    tasks.start(gathering.ticket, 0)
    with pytest.raises(TimeoutError, match="waited 2 s for 2 tasks to start"):
        run_elastic(gathering, Call(fail_always), ElasticSettings(2, 1, 2), JobOptions(start_timeout=2))
    assert tasks.end()[0][0] == 0
