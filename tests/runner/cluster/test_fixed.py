import contextlib
import io
import os
import pickle
import re
import select
import signal
import socket
import threading
import time

import pytest

from horovod.runner.cluster import ArrivalError, Call, JobOptions, run_fixed
from horovod.runner.function.outcome import WorkerError
from tests.runner.cluster.tasks import has_exited


def describe(base):
    import numpy as np

    import horovod.numpy as hvd

    hvd.init()
    print("hello from", hvd.rank())
    total = hvd.allreduce(np.array([hvd.rank() + base]), op=hvd.Sum)
    place = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_size()
    return place, total.tolist(), os.environ.get("MARK"), os.getcwd()


def test_a_job_of_three_ignores_strangers(tasks, gathering, tmp_path):
    """Strangers of all kinds connect, more than are examined at a time."""
    port = gathering.ticket.endpoints[-1].port
    messages = [b"GET / HTTP/1.0\r\n\r\n", bytes(4096), os.urandom(4096), b"", pickle.dumps({"a": 1})]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as strangers:
        for number in range(300):
            stranger = strangers.enter_context(socket.create_connection(("127.0.0.1", port), 5))
            with contextlib.suppress(OSError):
                stranger.sendall(messages[number % len(messages)])
        for number in (2, 0, 1):
            environ = {**os.environ, "MARK": f"task {number}"}
            tasks.start(gathering.ticket, number, directory=str(tmp_path), environ=environ)
        results = run_fixed(gathering, Call(describe, (10,)), 3, JobOptions(start_timeout=30, stdout=out, stderr=err))
    assert results == [((rank, 3, rank, 3, 1), [33], f"task {rank}", str(tmp_path)) for rank in range(3)]
    assert sorted(out.getvalue().splitlines()) == [f"[{rank}]<stdout>:hello from {rank}" for rank in range(3)]
    assert {number: code for number, (code, _) in tasks.end().items()} == {0: 0, 1: 0, 2: 0}


def fail_on_one():
    import horovod.numpy as hvd

    hvd.init()
    if hvd.rank() == 1:
        raise KeyError("spam")
    hvd.barrier()


def test_an_exception_comes_with_its_traceback(tasks, gathering):
    for number in range(2):
        tasks.start(gathering.ticket, number)
    with pytest.raises(WorkerError, match="rank 1") as caught:
        run_fixed(
            gathering, Call(fail_on_one), 2, JobOptions(start_timeout=30, stdout=io.StringIO(), stderr=io.StringIO())
        )
    assert isinstance(caught.value, KeyError)
    assert "in fail_on_one" in caught.value.remote_traceback
    tasks.end()


def sleep_and_report(path):
    import horovod.numpy as hvd

    hvd.init()
    with open(f"{path}/{hvd.rank()}", "w") as file:
        file.write(str(os.getpid()))
    time.sleep(120)


def test_a_killed_task_is_named_and_ends_the_job(tasks, gathering, tmp_path):
    for number in range(3):
        tasks.start(gathering.ticket, number, label=f"task {number} of 3")
    killed = []

    def kill():
        lines(tmp_path, 3)
        killed.append(time.monotonic())
        tasks.kill(1)

    threading.Thread(target=kill, daemon=True).start()
    options = JobOptions(start_timeout=30, stdout=io.StringIO(), stderr=io.StringIO())
    with pytest.raises(WorkerError, match=r"host \S+, task 1 of 3 \(rank 1\) is lost: the connection to"):
        run_fixed(gathering, Call(sleep_and_report, (str(tmp_path),)), 3, options)
    assert time.monotonic() - killed[0] < 60  # well before the others would end by themselves
    pids = [int(file.read_text()) for file in tmp_path.iterdir()]
    assert len(pids) == 3
    assert all(has_exited(pid) for pid in pids)
    assert {code for code, _ in tasks.end().values()} == {0, -signal.SIGKILL}


def lines(folder, count, seconds=30):
    """Return the ranks' pids once all ranks have reported."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pids = [file.read_text() for file in folder.iterdir()]
        if len(pids) == count and all(pids):
            return list(map(int, pids))
        time.sleep(0.05)
    raise AssertionError("they did not come")


def test_missing_tasks_are_named(tasks, gathering):
    tasks.start(gathering.ticket, 0)
    assert select.select([gathering.fd], [], [], 60)[0], "it has come"
    with pytest.raises(TimeoutError, match=r"waited 2 s for 2 tasks to start .* 1 have .*task 0.* Give it room"):
        run_fixed(gathering, Call(describe, (1,)), 2, JobOptions(start_timeout=2, advice="Give it room."))
    assert tasks.end()[0][0] == 0  # it was released


def test_mismatches_are_named(tasks, gathering):
    named = r"it has horovod 0\.0\.1, the launcher "
    tasks.start(gathering.ticket, 0, before="import horovod.runner.cluster.task as t; t.__version__ = '0.0.1'")
    with pytest.raises(ArrivalError, match=named):
        run_fixed(gathering, Call(describe, (0,)), 1, JobOptions(start_timeout=30))
    code, text = tasks.end()[0]
    assert code == 1
    assert re.search("the launcher refuses this process: " + named, text)
