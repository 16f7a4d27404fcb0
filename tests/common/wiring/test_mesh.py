"""Forming connections, with ranks as threads: links lead to the right ranks, and strangers do not hinder it."""

import contextlib
import errno
import os
import socket
import threading
import time

import pytest

from horovod.common.network.endpoints import Endpoint
from horovod.common.network.listeners import Listeners
from horovod.common.security import auth
from horovod.common.wiring import shared_memory
from horovod.common.wiring.link_errors import LinkError
from horovod.common.wiring.links import CONTROL, DATA, NODE
from horovod.common.wiring.mesh import MeshBuilder
from horovod.common.wiring.peers import Peer, make_plan
from tests.runner.launching import eventually

KEY = b"k" * 32
LOOPBACK = [Endpoint("lo", "127.0.0.1", 8)]


def make_peers(hosts, listeners, publish=lambda _, own: own):
    """`publish`: what a rank says to listen on, from its number and what it does listen on."""
    return [
        Peer(
            "1",
            rank,
            host,
            host,
            100 + rank,
            "n",
            publish(rank, here.endpoints),
            here.unix_name,
            [0],
            {},
            False,
            [],
            [],
        )
        for rank, (host, here) in enumerate(zip(hosts, listeners, strict=True))
    ]


def where(listeners):
    return listeners.endpoints[0].address, listeners.endpoints[0].port


def form(hosts, seconds=30.0, keys=None, absent=(), before=None, publish=lambda _, own: own):
    """Builds the mesh of every rank in a thread; returns (plans, results): a result is the links or an exception."""
    listeners = [Listeners(LOOPBACK, 4 * len(hosts) + 64) for _ in hosts]
    peers = make_peers(hosts, listeners, publish)
    plans = [make_plan(rank, peers) for rank in range(len(hosts))]
    results = [None] * len(hosts)

    def run(rank):
        key = keys[rank] if keys else KEY
        try:
            results[rank] = MeshBuilder(plans[rank], peers, key, 7, listeners[rank]).run(seconds, lambda: None)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(hosts)) if rank not in absent]
    if before:
        before(listeners)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    for listener in listeners:
        listener.close()
    return plans, results


def close_all(results):
    for links in results:
        if isinstance(links, dict):
            for sock in links.values():
                sock.close()


def check_complete(plans, results):
    """Every link leads to the rank that it is said to lead to: each side sends its own rank and reads the other's."""
    for rank, links in enumerate(results):
        assert isinstance(links, dict), links
        plan = plans[rank]
        expected = {(DATA, other) for other in plan.remote}
        expected |= {(NODE, other) for other in plan.local_children} | {
            (CONTROL, other) for other in plan.remote_children
        }
        if plan.parent >= 0:
            expected.add((CONTROL if plan.leads else NODE, plan.parent))
        assert set(links) == expected
        for sock in links.values():
            sock.sendall(bytes([rank]))
    for links in results:
        for (_, other), sock in links.items():
            sock.settimeout(30)
            assert sock.recv(10) == bytes([other])
    close_all(results)


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
    monkeypatch.setattr("horovod.common.wiring.mesh._STRANGERS", 5)
    strangers = []

    def pester(listeners):
        for listener in listeners:
            for _ in range(20):  # more than may wait at a time; they say nothing
                strangers.append(socket.create_connection(where(listener), timeout=30))
            strangers[-1].sendall(b"GET / HTTP/1.1\r\nHost: somebody\r\nUser-Agent: something or other\r\n\r\n")
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
    """(listeners, attempts) of a job of which only rank `me` is there, and forms its links until the end."""
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
    """`count` bytes, or what comes before the end."""
    data = b""
    sock.settimeout(30)
    with contextlib.suppress(ConnectionResetError):
        while len(data) < count and (piece := sock.recv(count - len(data))):
            data += piece
    return data


@pytest.fixture
def patient(monkeypatch):
    for name in ("_UNREACHABLE_SECONDS", "_HANDSHAKE_SECONDS", "_BUSY_SECONDS"):
        monkeypatch.setattr("horovod.common.wiring.mesh." + name, 60.0)


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
        for text in [first] * 20 + [second]:  # of several addresses an honest peer tries more than one at once
            assert receive(invite(text), hello) == b""
        followed.close()
        assert receive(invite(first), hello) == b""
        assert len(receive(invite(third), hello)) == hello


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
def test_silent_strangers_do_not_drop_who_has_said_hello(patient, monkeypatch, family):
    monkeypatch.setattr("horovod.common.wiring.mesh._STRANGERS", 5)
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
        assert receive(silent[0], 1) == b""  # had to make a place
        honest.sendall(side.outgoing)
        side.feed(receive(honest, side.wanted))
        assert side.done


def test_other_users_take_nobodys_place(patient, monkeypatch):
    monkeypatch.setattr("horovod.common.wiring.mesh._STRANGERS", 5)
    monkeypatch.setattr("horovod.common.wiring.mesh._peer_uid", lambda sock: os.geteuid() + 1)
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


def test_giving_up_early():
    def give_up():
        raise LinkError("rank 5 could not join")

    listeners = [Listeners(LOOPBACK, 8), Listeners(LOOPBACK, 8)]
    peers = make_peers("ab", listeners)
    begin = time.monotonic()
    with pytest.raises(LinkError, match="rank 5"):
        MeshBuilder(make_plan(0, peers), peers, KEY, 7, listeners[0]).run(60, give_up)
    assert time.monotonic() - begin < 30
    for listener in listeners:
        listener.close()


def test_foreign_address_is_refused():
    with pytest.raises(ValueError, match=r"cannot listen on 203\.0\.113\.1 \(eth7\): Cannot assign"):
        Listeners([Endpoint("eth7", "203.0.113.1", 24)], 1)


def test_descriptors_travel_in_batches():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        made = shared_memory.make(8192, 250)
        sender = threading.Thread(target=shared_memory.send, args=(ours, made, 30))
        sender.start()
        received = shared_memory.receive(theirs, 251, 30)
        sender.join(30)
        assert os.fstat(received[0]).st_ino == os.fstat(made[0]).st_ino
        assert not any(os.get_inheritable(fd) for fd in received)
        os.pwrite(made[0], b"shared", 100)
        assert os.pread(received[0], 6, 100) == b"shared"
        for index, fd in enumerate(made[1:]):
            os.eventfd_write(fd, index + 1)
        assert [os.eventfd_read(fd) for fd in received[1:]] == list(range(1, 251))
        with pytest.raises(OSError):
            os.ftruncate(received[0], 0)
        shared_memory.close(made + received)


def test_descriptors_that_do_not_come():
    ours, theirs = socket.socketpair()
    before = len(os.listdir("/proc/self/fd"))
    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        shared_memory.receive(theirs, 2, 0.2)
    assert time.monotonic() - begin < 20
    ours.sendall(b"d")
    with pytest.raises(OSError, match="were lost"):
        shared_memory.receive(theirs, 2, 1)
    bells = shared_memory.make_bells(3)
    shared_memory.send(ours, bells, 1)
    with pytest.raises(OSError, match="3 descriptors came instead of 2"):
        shared_memory.receive(theirs, 2, 1)
    shared_memory.close(bells)
    ours.close()
    with pytest.raises(ConnectionError, match="closed"):
        shared_memory.receive(theirs, 2, 1)
    assert len(os.listdir("/proc/self/fd")) == before - 1
    theirs.close()


def test_a_listener_that_cannot_accept_neither_spins_nor_hides_news(monkeypatch):
    """Descriptors ran out: the listener stays readable, and another rank's failure must still be heard of."""
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


@contextlib.contextmanager
def stranger(answer):
    """Somebody who listens; hangs up (`answer` 'hang up'), says nothing ('nothing') or lets nobody in ('full')."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0 if answer == "full" else 64)
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
                if answer == "hang up":
                    held.pop().close()

        server = threading.Thread(target=serve)
        if answer != "full":
            server.start()
        else:
            for _ in range(2):  # what is more than the backlog gets no answer at all
                held.append(socket.socket())
                held[-1].setblocking(False)
                held[-1].connect_ex(listener.getsockname())
        yield Endpoint("eth5", "127.0.0.1", 8, listener.getsockname()[1])
        done.set()
        if answer != "full":
            socket.create_connection(listener.getsockname()).close()
            server.join(30)
        for sock in held:
            sock.close()


@contextlib.contextmanager
def nobody():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # not listening
        yield Endpoint("eth6", "127.0.0.1", 8, sock.getsockname()[1])


def test_addresses_that_lead_elsewhere_are_skipped(monkeypatch):
    """Each peer's good address is the last one; every other one leads to nobody, to a stranger or to another rank."""
    monkeypatch.setattr("horovod.common.wiring.mesh._REVERSE_SECONDS", 60)
    first = []

    def publish(rank, own):
        first.extend(own if rank == 0 else [])
        return [none, rude, full, *(first if rank else []), *own]

    with stranger("hang up") as rude, stranger("nothing") as silent, stranger("full") as full, nobody() as none:
        check_complete(*form("abcb", seconds=60, publish=publish))
        check_complete(*form("ab", seconds=60, publish=lambda _, own: [silent, *own]))


@pytest.mark.parametrize("hosts", ["ab", "aabb", "abcd"])
def test_who_listens_connects_when_nobody_reaches_it(hosts, monkeypatch):
    monkeypatch.setattr("horovod.common.wiring.mesh._REVERSE_SECONDS", 0.1)
    with stranger("full") as full, nobody() as none:
        plans, results = form(hosts, seconds=60, publish=lambda rank, own: [none, full] if rank == 0 else own)
    check_complete(plans, results)


def test_an_acceptor_that_gives_up_at_the_last_moment_is_tried_again(monkeypatch):
    """On a crowded machine its patience may end while the proof is under way; the connector must not take that for a
    connection."""
    receive, given_up = auth.Acceptor._receive, []

    def receive_or_give_up(self, message):
        if self.outgoing == b"" and self._claimed is not None and len(given_up) < 3:
            given_up.append(self)
            raise auth.AuthError("too late")
        receive(self, message)

    monkeypatch.setattr(auth.Acceptor, "_receive", receive_or_give_up)
    check_complete(*form("abc", seconds=60))
    assert len(given_up) == 3


def test_both_directions_at_once_leave_one_connection(monkeypatch):
    monkeypatch.setattr("horovod.common.wiring.mesh._REVERSE_SECONDS", 0)
    for _ in range(10):
        check_complete(*form("abcdaa"))


def test_the_first_failure_names_both_ranks_and_every_address(monkeypatch):
    monkeypatch.setattr("horovod.common.wiring.mesh._UNREACHABLE_SECONDS", 2.0)
    monkeypatch.setattr("horovod.common.wiring.mesh._UNREACHABLE", 0)
    begin = time.monotonic()
    with stranger("hang up") as rude, stranger("full") as full, nobody() as none:
        _, results = form("ab", seconds=60, absent=[0], publish=lambda *_: [none, rude, full])
    assert time.monotonic() - begin < 40
    assert isinstance(results[1], LinkError)
    text = str(results[1])
    assert text.startswith(
        f"no data connection to rank 0 (host a, pid 100) at {none} (eth6): refused; {rude} (eth5): somebody else "
        f"answers, and hangs up; {full} (eth5): no answer; and none came from there. Is there a firewall?"
    )
    assert "HOROVOD_PORT_RANGE" in text
    assert "--network-interfaces" in text


def test_a_peer_that_is_nowhere_reachable(monkeypatch):
    monkeypatch.setattr("horovod.common.wiring.mesh._UNREACHABLE_SECONDS", 0.5)
    monkeypatch.setattr("horovod.common.wiring.mesh._UNREACHABLE", 0)
    begin = time.monotonic()
    _, results = form("ab", seconds=60, absent=[0], publish=lambda *_: [])
    assert time.monotonic() - begin < 40
    assert "which listens on nothing only, where this host cannot reach it" in str(results[1])
