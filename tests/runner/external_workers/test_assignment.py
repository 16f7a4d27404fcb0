"""Existing processes become ranks, and both sides notice when the other ends."""

import contextlib
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import time

import cloudpickle
import pytest

from horovod.common.store.messages import curve_pair
from horovod.runner.external_workers import assignment, liveness, workers
from horovod.runner.external_workers.workers import ExternalWorkers
from tests.runner.external_workers.worker_processes import WorkerProcesses

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def describe():
    return assignment.describe()


def total():
    import numpy as np

    import horovod.numpy as hvd

    hvd.init()
    return hvd.rank(), hvd.size(), hvd.local_size(), float(hvd.allreduce(np.ones(3), op=hvd.Sum)[0])


@pytest.fixture
def job():
    """Return (workers, the driver's end, queue of ended workers)."""
    ended = queue.Queue()
    with WorkerProcesses() as group:
        servers = ExternalWorkers(
            "127.0.0.1", lambda *args: ended.put(args), variables={"HOROVOD_HEARTBEAT_TIMEOUT": "4"}
        )
        try:
            yield group, servers, ended
        finally:
            servers.close()


def join_all(group, servers, count, seconds=10.0):
    processes = [group.add() for _ in range(count)]
    answers = [group.ask(one, describe) for one in processes]
    for slot in assignment.slots(assignment.hosts(answers)):
        order = servers.assign(slot.rank, answers[slot.rank], workers.of_slot(slot), seconds)
        group.ask(processes[slot.rank], lambda order=order: assignment.join(order))
    return processes


def test_workers_become_ranks_and_can_rejoin(job):
    group, servers, ended = job
    processes = join_all(group, servers, 2)
    for _ in range(2):
        for one in processes:
            group.send(one, total)
        assert [group.receive(one) for one in processes] == [(True, (0, 2, 2, 2.0)), (True, (1, 2, 2, 2.0))]
        for one in processes:
            group.ask(one, lambda: __import__("horovod.numpy").numpy.shutdown())
    assert ended.empty()


def test_a_forked_child_does_not_keep_the_connection(job):
    group, servers, ended = job
    (process,) = join_all(group, servers, 1)

    def fork():
        import os
        import time

        pid = os.fork()
        if pid == 0:
            time.sleep(30)
            os._exit(0)
        return pid

    child = group.ask(process, fork)
    try:
        process.kill()
        assert ended.get(timeout=60) == (0, "")
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.heavy
def test_stopped_workers_are_lost_and_busy_ones_are_not(job):
    group, servers, ended = job
    busy, stopped = join_all(group, servers, 2)
    until = time.monotonic() + 20
    while len(servers._liveness._heartbeats._connected) < 2:  # a worker stopped earlier has never reported
        assert time.monotonic() < until
        time.sleep(0.02)
    start = time.monotonic()
    group.send(busy, lambda: __import__("ctypes").PyDLL(None).usleep(6_500_000))  # it never releases the lock
    os.kill(stopped.pid, signal.SIGSTOP)
    number, still = ended.get(timeout=60)
    assert number == 1
    assert re.fullmatch(r"no message from it for \d s; it is stopped, its machine is down .*", still)
    assert time.monotonic() - start > 3.0
    os.kill(stopped.pid, signal.SIGCONT)
    assert stopped.wait(60) == 1
    assert "considers this worker lost" in stopped.stderr.read()
    assert group.receive(busy) == (True, 0)
    assert ended.empty()


def test_a_worker_ends_with_its_required_process(job):
    group, servers, ended = job
    keeper = subprocess.Popen(["sleep", "60"])
    try:
        process = group.add()
        received = group.ask(process, describe)
        (slot,) = assignment.slots(["a"])
        order = servers.assign(0, received, workers.of_slot(slot), 10.0)
        pid = keeper.pid
        group.ask(process, lambda: assignment.join(order, {pid: "its keeper"}))
    finally:
        keeper.kill()
        keeper.wait()
    assert process.wait(60) == 1
    assert "its keeper is gone" in process.stderr.read()
    assert ended.get(timeout=60) == (0, "")


def test_a_leaving_worker_restores_variables_and_drops_the_key(job):
    group, servers, ended = job
    process = group.add()
    group.ask(process, lambda: os.environ.update(HOROVOD_RANK="7", SHADE="grey"))
    order = servers.assign(
        0, group.ask(process, describe), {"HOROVOD_RANK": "0", "SHADE": "red", "COLOUR": "blue"}, 10.0
    )

    def shown():
        return [os.environ.get(name) for name in ("HOROVOD_RANK", "SHADE", "COLOUR")]

    group.ask(process, lambda: assignment.join(order))
    assert group.ask(process, shown) == ["0", "red", "blue"]
    group.ask(process, assignment.leave)
    assert group.ask(process, shown) == ["7", "grey", None]
    left = group.ask(process, lambda: [name for name in os.environ if name.startswith("HOROVOD_")])
    assert [name for name in left if "KEY" in name or "RENDEZVOUS" in name] == []
    assert ended.get(timeout=60) == (0, "")
    servers.close()
    assert process.poll() is None


def test_descriptions_do_not_contain_the_key(job):
    group, servers, _ = job
    process = group.add()
    received = group.ask(process, describe)
    order = servers.assign(0, received, {}, 5.0)
    group.ask(process, lambda: assignment.join(order))

    def key():
        from horovod.common.contract.worker_env import read_key_fd

        return bytes(read_key_fd(int(os.environ["HOROVOD_KEY_FD"])))

    secret = group.ask(process, key)
    pickled = cloudpickle.dumps((received, order))
    assert len(secret) == 32
    assert secret not in pickled
    assert curve_pair(secret, "client")[1] not in pickled


def test_a_stranger_with_all_public_data_gets_nothing(job):
    group, servers, _ = job
    received = group.ask(group.add(), describe)
    order = servers.assign(0, received, {}, 1.0)
    stranger = group.add()  # with its own key pair
    group.ask(stranger, describe)
    group.send(stranger, lambda: assignment.join(order))
    good, reason = group.receive(stranger)
    assert not good
    assert "does not answer" in reason


def test_silent_strangers_do_not_keep_members_out(job, monkeypatch):
    monkeypatch.setattr(liveness, "_UNAUTHENTICATED", 4)
    monkeypatch.setattr(liveness, "_HANDSHAKE", 1000.0)
    group, servers, ended = job
    process = group.add()
    order = servers.assign(0, group.ask(process, describe), {}, 20.0)
    with contextlib.ExitStack() as crowd:
        for _ in range(8):
            crowd.enter_context(socket.create_connection(("127.0.0.1", servers._liveness_port), 5))
        group.send(process, lambda: assignment.join(order))
        assert group.receive(process) == (True, None)
    process.kill()
    assert ended.get(timeout=60) == (0, "")
