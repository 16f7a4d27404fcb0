"""Forming connections between ranks that are threads: links lead to the right ranks despite strangers."""

import contextlib
import os
import socket
import threading
import time

import pytest

from horovod.common.bootstrap.errors import LinkError
from horovod.common.bootstrap.mesh import MeshBuilder
from horovod.common.bootstrap.peers import make_plan
from horovod.common.network.connecting import Listeners
from tests.common.bootstrap.meshes import KEY, LOOPBACK, addresses_of, check_complete, close_all, form, make_peers
from tests.runner.launching import eventually


@pytest.mark.parametrize("hosts", ["aa", "ab", "aaa", "aab", "abab", "abcd", "aabbccdd", "abcabcabc"])
def test_every_link_leads_to_its_rank(hosts):
    check_complete(*form(hosts))


def test_a_missing_rank_is_named_in_time():
    begin = time.monotonic()
    _, results = form("abc", seconds=2, absent=[1])
    assert time.monotonic() - begin < 20
    assert isinstance(results[0], LinkError)
    assert "waited 2 s for" in str(results[0])
    assert "data connection from rank 1 (host b, pid 101)" in str(results[0])
    assert "data connection to rank 1 (host b, pid 101) at 127.0.0.1:" in str(results[2])
    assert "rank 0" not in str(results[2])


def test_ranks_with_another_key_are_rejected():
    _, results = form("aab", seconds=2, keys=[KEY, b"x" * 32, KEY])
    assert "node connection from rank 1" in str(results[0])
    assert "rank 2" not in str(results[0])
    assert "node connection to rank 0" in str(results[1])
    close_all(results)


def test_strangers_are_dropped_and_do_not_disturb_ranks(monkeypatch):
    monkeypatch.setattr("horovod.common.bootstrap.mesh._STRANGERS", 5)
    strangers = []

    def disturb(listeners):
        for listener in listeners:
            for _ in range(20):  # more than may wait at a time; they send nothing
                strangers.append(socket.create_connection(addresses_of(listener), timeout=30))
            strangers[-1].sendall(b"GET / HTTP/1.1\r\nHost: example\r\nUser-Agent: something or other\r\n\r\n")
            unix = socket.socket(socket.AF_UNIX)
            unix.connect("\0horovod-" + listener.unix_name)
            unix.sendall(os.urandom(56))
            strangers.append(unix)

    plans, results = form("aabb", before=disturb)
    check_complete(plans, results)
    for stranger in strangers:
        stranger.settimeout(30)
        with contextlib.suppress(ConnectionResetError):
            assert len(stranger.recv(100)) in (0, 64)  # a challenge at most
        stranger.close()


@contextlib.contextmanager
def forming(me, hosts="ab"):
    """Yield (listeners, attempts) of a job in which only rank `me` is present and keeps forming its links."""
    listeners = [Listeners(LOOPBACK, 256) for _ in hosts]
    peers = make_peers(hosts, listeners)
    mesh = MeshBuilder(make_plan(me, peers), peers, KEY, 7, listeners[me])
    done = threading.Event()

    def check():
        if done.is_set():
            raise LinkError("the end")

    def run():
        with pytest.raises(LinkError, match="the end"):
            mesh.run(60, check)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield listeners, mesh._attempts
    finally:
        done.set()
        thread.join(30)
        for listener in listeners:
            listener.close()
    assert not thread.is_alive()


def receive(sock, count):
    """Return `count` bytes, or fewer at the end of the connection."""
    data = b""
    sock.settimeout(30)
    with contextlib.suppress(ConnectionResetError):
        while len(data) < count and (piece := sock.recv(count - len(data))):
            data += piece
    return data


@pytest.fixture
def patient(monkeypatch):
    for name in ("_UNREACHABLE_SECONDS", "_HANDSHAKE_SECONDS", "_BUSY_SECONDS"):
        monkeypatch.setattr("horovod.common.bootstrap.mesh." + name, 60.0)


def test_other_users_do_not_take_places(patient, monkeypatch):
    monkeypatch.setattr("horovod.common.bootstrap.mesh._STRANGERS", 5)
    monkeypatch.setattr("horovod.common.bootstrap.mesh.kernel.peer_user", lambda sock: os.geteuid() + 1)
    with forming(0) as (listeners, attempts), contextlib.ExitStack() as stack:
        for _ in range(9):  # as many as may wait: twice the two links, and 5
            stack.enter_context(socket.create_connection(addresses_of(listeners[0]), timeout=60))
        eventually(lambda: len(attempts) == 9, 30, "the slow ones are let in")
        before = list(attempts)
        for _ in range(20):
            other = stack.enter_context(socket.socket(socket.AF_UNIX))
            other.settimeout(30)
            other.connect("\0horovod-" + listeners[0].unix_name)
            assert receive(other, 1) == b""
        assert list(attempts) == before
