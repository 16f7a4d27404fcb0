import contextlib
import dataclasses
import socket
import subprocess
import sys
import threading
import time

import pytest

from horovod.common.contract.private_files import Secret
from horovod.common.network.interfaces import Endpoint, network_identity
from horovod.runner.cluster import ArrivalError, Gathering, Ticket, task
from horovod.runner.remote.arrived import ArrivedConnection

SIZE = 3 << 20


class Plain:
    """An unencrypted channel."""

    def __init__(self):
        self._data = bytearray()

    def write(self, data):
        self._data += data

    def take(self):
        data = bytes(self._data)
        self._data.clear()
        return data

    def feed(self, data):
        return data


@pytest.fixture
def agent():
    """An agent that sends its messages and ends."""
    command = [sys.executable, "-c", f"import sys; sys.stdout.write('x' * {SIZE})"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        yield process
        process.kill()


def test_a_slow_launcher_gets_all_messages(agent, monkeypatch):
    monkeypatch.setattr(task, "END_SECONDS", 1.0)
    local, peer = socket.socketpair()
    received = []

    def receive():
        while sum(received) < SIZE:
            received.append(len(peer.recv(1 << 17)))
            time.sleep(0.1)

    with local, peer:
        peer.settimeout(20)
        thread = threading.Thread(target=receive, daemon=True)
        started = time.monotonic()
        thread.start()
        task._pass_on(ArrivedConnection(local, Plain()), agent)
        thread.join(20)
        assert time.monotonic() - started > 1.5
    assert sum(received) == SIZE


class Busy:
    """A launcher that closes each connection, and after some connections stops listening."""

    def __init__(self, times):
        self.came = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        endpoint = Endpoint("lo", "127.0.0.1", 8, self._listener.getsockname()[1])
        self.ticket = Ticket((endpoint,), network_identity(), Secret(bytes(32)))
        self._thread = threading.Thread(target=self._serve, args=(times,), daemon=True)

    def _serve(self, times):
        with self._listener, contextlib.suppress(OSError):
            for _ in range(times):
                self._listener.accept()[0].close()
                self.came.append(time.monotonic())

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(60)


def test_disconnected_tasks_retry_until_the_launcher_is_gone():
    with Busy(2) as launcher:
        with pytest.raises(ArrivalError, match=r"cannot reach the job's launcher .*refused"):
            task.become_agent(launcher.ticket, 0)
        assert len(launcher.came) == 2
        assert launcher.came[1] - launcher.came[0] >= task.PAUSE * 0.9


def test_tasks_without_the_token_are_rejected_at_once():
    with Gathering("task") as gathering:
        stranger = dataclasses.replace(gathering.ticket, token=Secret(bytes(32)))
        started = time.monotonic()
        with pytest.raises(ArrivalError, match="does not know the job's key"):
            task.become_agent(stranger, 0)
        assert time.monotonic() - started < 60
