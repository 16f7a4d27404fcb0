import io
import os
import re
import threading
import time
import venv

import numpy as np
import pytest

import horovod.numpy as hvd
import horovod.spark
from horovod.runner.function.outcome import WorkerError
from horovod.spark.application import Application, Jobs
from horovod.spark.task import SECRETS
from tests.runner.cluster.tasks import has_exited
from tests.spark.executors import kill_executor_of, wait_for


def describe(base):
    hvd.init()
    print("hello from", hvd.rank())
    total = hvd.allreduce(np.array([hvd.rank() + base]), op=hvd.Sum).tolist()
    secret = [name for name in SECRETS if name in os.environ]
    place = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()
    return place, total, os.environ["MARK"], os.environ.get("GIVEN"), secret


@pytest.mark.smoke
def test_results_by_rank_output_and_variables(spark):
    out, err = io.StringIO(), io.StringIO()
    results = horovod.spark.run(describe, (10,), num_proc=4, stdout=out, stderr=err, env={"GIVEN": "yes"})
    assert results == [((rank, 4, rank, 4), [46], "of the executor", "yes", []) for rank in range(4)]
    assert sorted(out.getvalue().splitlines()) == [f"[{rank}]<stdout>:hello from {rank}" for rank in range(4)]
    status = spark.statusTracker()
    wait_for(lambda: not status.getActiveJobsIds(), 10)


def test_more_processes_than_slots(spark):
    started = time.monotonic()
    with pytest.raises(ValueError, match=r"num_proc must be at most 4, .*, got 9: .* means 2 executors of 2 cores"):
        horovod.spark.run(describe, (1,), num_proc=9)
    with pytest.raises(ValueError, match=r"num_proc must be at most 4, .*, got 9: "):
        horovod.spark.run_elastic(describe, (1,), num_proc=9)
    assert time.monotonic() - started < 60  # well before the start timeout


def test_unpicklable_arguments_are_found_before_anything_starts(spark, monkeypatch):
    started = []
    monkeypatch.setattr(Jobs, "start", lambda self, act: started.append(act))
    for job in (horovod.spark.run, horovod.spark.run_elastic):
        with pytest.raises(TypeError, match=r"args\[0\].*cannot be sent to the workers: .*lock"):
            job(describe, (threading.Lock(),), num_proc=2, start_timeout=1)
    assert started == []


def fail(folder):
    hvd.init()
    if hvd.rank() == 1:
        raise KeyError("spam")
    hvd.barrier()


def test_an_exception_has_the_workers_traceback(spark):
    with pytest.raises(WorkerError, match="rank 1 on host") as caught:
        horovod.spark.run(fail, ("",), num_proc=2, stdout=io.StringIO(), stderr=io.StringIO())
    assert isinstance(caught.value, KeyError)
    assert "in fail" in caught.value.remote_traceback


def wait(folder):
    hvd.init()
    with open(f"{folder}/{hvd.rank()}", "w") as file:
        file.write(str(os.getpid()))
    hvd.barrier()
    time.sleep(120)


def pids(folder, count):
    """Return the ranks' pids once all ranks have started."""
    files = [folder / str(rank) for rank in range(count)]
    return [int(file.read_text() or 0) for file in files] if all(file.exists() for file in files) else []


@pytest.mark.heavy
def test_two_jobs_at_once(spark):
    def job(base):
        out.append(horovod.spark.run(describe, (base,), num_proc=2, stdout=io.StringIO(), env={"GIVEN": str(base)}))

    out = []
    threads = [threading.Thread(target=job, args=(base,)) for base in (10, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(result[0][1] for result in out) == [[21], [41]]
    assert sorted(result[1][3] for result in out) == ["10", "20"]


@pytest.mark.heavy
def test_dynamic_allocation(spark, monkeypatch):
    """Spark has no barrier mode with dynamic allocation: the stage is a plain one."""
    monkeypatch.setattr(Application, "is_dynamic", property(lambda self: True))
    results = horovod.spark.run(describe, (10,), num_proc=2, stdout=io.StringIO())
    assert [place[:2] for place, *_ in results] == [(0, 2), (1, 2)]


@pytest.mark.heavy
def test_an_interrupt_ends_all(spark, tmp_path):
    def interrupt():
        wait_for(lambda: all(pids(tmp_path, 2)) and pids(tmp_path, 2))
        os.kill(os.getpid(), 2)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        horovod.spark.run(wait, (str(tmp_path),), num_proc=2, stdout=io.StringIO(), stderr=io.StringIO())
    assert all(has_exited(pid) for pid in pids(tmp_path, 2))
    wait_for(lambda: not spark.statusTracker().getActiveJobsIds(), 10)


@pytest.mark.heavy
def test_executors_without_horovod_are_named(spark, tmp_path, monkeypatch):
    """The executors' Python has no packages."""
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setattr(spark, "pythonExec", str(tmp_path / "bare" / "bin" / "python"))
    started = time.monotonic()
    for job in (horovod.spark.run, horovod.spark.run_elastic):
        with pytest.raises(RuntimeError, match=r"an executor has no horovod, or another version \(horovod\)"):
            job(describe, (1,), num_proc=2)
    assert time.monotonic() - started < 40


def test_a_killed_executor_ends_the_job_and_is_named(spark, tmp_path):
    killed = []

    def kill():
        found = wait_for(lambda: all(pids(tmp_path, 4)) and pids(tmp_path, 4))
        killed.append(kill_executor_of(found[3]))

    threading.Thread(target=kill, daemon=True).start()
    named = r"host \S+, Spark task \d \(rank \d\) is lost"
    with pytest.raises(WorkerError, match=named) as caught:
        horovod.spark.run(wait, (str(tmp_path),), num_proc=4, stdout=io.StringIO(), stderr=io.StringIO())
    assert time.time() - killed[0] < 60
    assert re.search(r"Spark says: .*ExecutorLost|Spark says: .*executor", str(caught.value), re.DOTALL)
    assert all(has_exited(pid) for pid in pids(tmp_path, 4))
