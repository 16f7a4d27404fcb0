"""The workers of one host, without an agent around them."""

import os
import sys
import time

from horovod.runner.agent.workers import WorkerTable
from horovod.runner.protocol.messages import Exited, StartJob, Worker


def test_the_agent_comes_to_say_something_between_the_starts():
    """Starting hundreds of workers on a busy host takes longer than the launcher's heartbeat timeout."""
    reports, words = [], []
    table = WorkerTable(reports.append)
    job = StartJob(
        command=[os.fsencode(sys.executable), b"-c", b"pass"],
        directory=b"/",
        environment=[(os.fsencode(name), os.fsencode(value)) for name, value in os.environ.items()],
        workers=[Worker(rank, []) for rank in range(3)],
        key=b"k" * 32,
    )
    pids = table.start(job, None, None, lambda: words.append(len(table._processes)))
    assert words == [0, 1, 2]
    deadline = time.monotonic() + 60
    while table.running and time.monotonic() < deadline:
        table.reap(lambda pid, code: None)
        time.sleep(0.01)
    assert [rank for rank, _ in pids] == [0, 1, 2]
    assert sorted((each.rank, each.status) for each in reports if isinstance(each, Exited)) == [(0, 0), (1, 0), (2, 0)]
    table.drain()
    while any(True for _ in table.readable_fds()):
        table.read_output(1 << 16)
