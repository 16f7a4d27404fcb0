"""Forming connections when addresses lead nowhere, or to other processes."""

import contextlib
import socket
import threading
import time

import pytest

from horovod.common.bootstrap.errors import LinkError
from horovod.common.network.interfaces import Endpoint
from tests.common.bootstrap.meshes import check_complete, form


@contextlib.contextmanager
def stranger(reply):
    """A stranger that closes connections (`answer`: 'hang up'), sends nothing ('nothing') or accepts none ('full')."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0 if reply == "full" else 64)
        held, done = [], threading.Event()

        def serve():
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                if done.is_set():
                    sock.close()
                    return
                held.append(sock)
                if reply == "hang up":
                    held.pop().close()

        server = threading.Thread(target=serve)
        if reply != "full":
            server.start()
        else:
            for _ in range(2):  # connections beyond the backlog get no answer at all
                held.append(socket.socket())
                held[-1].setblocking(False)
                held[-1].connect_ex(listener.getsockname())
        yield Endpoint("eth5", "127.0.0.1", 8, listener.getsockname()[1])
        done.set()
        if reply != "full":
            socket.create_connection(listener.getsockname()).close()
            server.join(30)
        for sock in held:
            sock.close()


@contextlib.contextmanager
def unreachable():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # not listening
        yield Endpoint("eth6", "127.0.0.1", 8, sock.getsockname()[1])


@pytest.mark.parametrize("hosts", ["ab", "aabb", "abcd"])
def test_unreachable_listeners_connect_themselves(hosts, monkeypatch):
    monkeypatch.setattr("horovod.common.bootstrap.mesh._REVERSE_SECONDS", 0.1)
    with stranger("full") as full, unreachable() as unused:
        plans, results = form(hosts, seconds=60, publish=lambda rank, own: [unused, full] if rank == 0 else own)
    check_complete(plans, results)


def test_the_first_failure_names_both_ranks_and_every_address(monkeypatch):
    monkeypatch.setattr("horovod.common.bootstrap.mesh._UNREACHABLE_SECONDS", 2.0)
    monkeypatch.setattr("horovod.common.bootstrap.mesh._UNREACHABLE", 0)
    begin = time.monotonic()
    with stranger("hang up") as rude, stranger("full") as full, unreachable() as unused:
        _, results = form("ab", seconds=60, absent=[0], publish=lambda *_: [unused, rude, full])
    assert time.monotonic() - begin < 40
    assert isinstance(results[1], LinkError)
    text = str(results[1])
    assert text.startswith(
        f"no data connection to rank 0 (host a, pid 100) at {unused} (eth6): refused; {rude} (eth5): another "
        f"program answered and closed the connection; {full} (eth5): no answer; and none came from there. "
        "Is there a firewall?"
    )
    assert "HOROVOD_PORT_RANGE" in text
    assert "--network-interfaces" in text


def test_unreachable_peer(monkeypatch):
    monkeypatch.setattr("horovod.common.bootstrap.mesh._UNREACHABLE_SECONDS", 0.5)
    monkeypatch.setattr("horovod.common.bootstrap.mesh._UNREACHABLE", 0)
    begin = time.monotonic()
    _, results = form("ab", seconds=60, absent=[0], publish=lambda *_: [])
    assert time.monotonic() - begin < 40
    assert "which listens on nothing only, where this host cannot reach it" in str(results[1])
