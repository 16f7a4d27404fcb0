"""Forming connections between ranks that are threads: links lead to the right ranks despite strangers."""

import contextlib
import errno
import os
import socket
import threading
import time

import pytest

from horovod.common.bootstrap.errors import LinkError
from horovod.common.bootstrap.mesh import MeshBuilder
from horovod.common.bootstrap.peers import DATA, NODE, make_plan
from horovod.common.network.connecting import Listeners
from horovod.common.network.interfaces import Endpoint
from horovod.common.security import auth
from tests.common.bootstrap.meshes import KEY, LOOPBACK, check_complete, close_all, form, make_peers, where
from tests.runner.launching import eventually


@pytest.mark.parametrize("hosts", ["aa", "ab", "aaa", "aab", "abab", "abcd", "aabbccdd", "abcabcabc"])
def test_every_link_leads_to_its_rank(hosts):
    check_complete(*form(hosts))


def test_no_descriptor_is_left_after_success_or_failure():
    form("ab", seconds=0.3, absent=[1])
    before = len(os.listdir("/proc/self/fd"))
    check_complete(*form("aabb"))
    form("aabb", seconds=0.3, absent=[3])
    form("aabb", seconds=0.5, keys=[KEY, KEY, b"x" * 32, KEY])
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_missing_rank_is_named_in_time():
    begin = time.monotonic()
    _, results = form("abc", seconds=2, absent=[1])
    assert time.monotonic() - begin < 20
    assert isinstance(results[0], LinkError)
    assert "waited 2 s for" in str(results[0])
    assert "data connection from rank 1 (host b, pid 101)" in str(results[0])
    assert "data connection to rank 1 (host b, pid 101) at 127.0.0.1:" in str(results[2])
    assert "rank 0" not in str(results[2])


def test_a_rank_with_another_key_is_not_let_in():
    _, results = form("aab", seconds=2, keys=[KEY, b"x" * 32, KEY])
    assert "node connection from rank 1" in str(results[0])
    assert "rank 2" not in str(results[0])
    assert "node connection to rank 0" in str(results[1])
    close_all(results)


def test_strangers_are_dropped_and_hinder_nobody(monkeypatch):
    monkeypatch.setattr("horovod.common.bootstrap.mesh._STRANGERS", 5)
    strangers = []

    def pester(listeners):
        for listener in listeners:
            for _ in range(20):  # more than may wait at a time; they send nothing
                strangers.append(socket.create_connection(where(listener), timeout=30))
            strangers[-1].sendall(b"GET / HTTP/1.1\r\nHost: example\r\nUser-Agent: something or other\r\n\r\n")
            unix = socket.socket(socket.AF_UNIX)
            unix.connect("\0horovod-" + listener.unix_name)
            unix.sendall(os.urandom(56))
            strangers.append(unix)

    plans, results = form("aabb", before=pester)
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


def test_a_repeated_invitation_is_not_followed_again(patient):
    hello = auth._HELLO.size
    with forming(1) as (listeners, _), contextlib.ExitStack() as stack:

        def invite(text):
            sock = stack.enter_context(socket.create_connection(where(listeners[1]), timeout=5))
            sock.sendall(text)
            return sock

        first, second, third = (auth.Inviter(KEY, auth.Place(DATA, 7, 1, 0)).outgoing for _ in range(3))
        followed = invite(first)
        assert len(receive(followed, hello)) == hello
        for text in [first] * 20 + [second]:  # an honest peer tries several of its addresses at once
            assert receive(invite(text), hello) == b""
        followed.close()
        assert receive(invite(first), hello) == b""
        assert len(receive(invite(third), hello)) == hello


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
def test_silent_strangers_do_not_drop_who_has_said_hello(patient, monkeypatch, family):
    monkeypatch.setattr("horovod.common.bootstrap.mesh._STRANGERS", 5)
    hosts, kind = ("ab", DATA) if family == socket.AF_INET else ("aaa", NODE)
    with forming(0, hosts) as (listeners, _), contextlib.ExitStack() as stack:

        def come():
            sock = stack.enter_context(socket.socket(family))
            sock.settimeout(30)
            sock.connect(where(listeners[0]) if family == socket.AF_INET else "\0horovod-" + listeners[0].unix_name)
            return sock

        honest, side = come(), auth.Connector(KEY, auth.Place(kind, 7, 1, 0))
        honest.sendall(side.outgoing)
        side.outgoing = b""
        side.feed(receive(honest, side.wanted))
        silent = [come() for _ in range(20)]
        assert receive(silent[0], 1) == b""  # closed to free a slot
        honest.sendall(side.outgoing)
        side.feed(receive(honest, side.wanted))
        assert side.done


def test_other_users_take_nobodys_place(patient, monkeypatch):
    monkeypatch.setattr("horovod.common.bootstrap.mesh._STRANGERS", 5)
    monkeypatch.setattr("horovod.common.bootstrap.mesh.descriptors.peer_user", lambda sock: os.geteuid() + 1)
    with forming(0) as (listeners, attempts), contextlib.ExitStack() as stack:
        for _ in range(9):  # as many as may wait: twice the two links, and 5
            stack.enter_context(socket.create_connection(where(listeners[0]), timeout=5))
        eventually(lambda: len(attempts) == 9, 30, "the slow ones are let in")
        before = list(attempts)
        for _ in range(20):
            other = stack.enter_context(socket.socket(socket.AF_UNIX))
            other.settimeout(30)
            other.connect("\0horovod-" + listeners[0].unix_name)
            assert receive(other, 1) == b""
        assert list(attempts) == before


def test_foreign_address_is_refused():
    with pytest.raises(ValueError, match=r"cannot listen on 203\.0\.113\.1 \(eth7\): Cannot assign"):
        Listeners([Endpoint("eth7", "203.0.113.1", 24)], 1)


def test_a_listener_that_cannot_accept_neither_spins_nor_hides_news(monkeypatch):
    """Without free descriptors the listener stays readable, but another rank's failure must still be noticed."""
    listeners = [Listeners(LOOPBACK, 32) for _ in "ab"]
    peers = make_peers("ab", listeners)
    calls = []

    def accept(_):
        calls.append(1)
        raise OSError(errno.EMFILE, "Too many open files")

    def check():
        if len(calls) > 1:
            raise LinkError("rank 1 could not join")

    monkeypatch.setattr(socket.socket, "accept", accept)
    mesh = MeshBuilder(make_plan(0, peers), peers, KEY, 7, listeners[0])
    with (
        socket.create_connection(where(listeners[0]), timeout=30),
        pytest.raises(LinkError, match="rank 1 could not join"),
    ):
        mesh.run(30.0, check)
    assert len(calls) < 30
    for listener in listeners:
        listener.close()
