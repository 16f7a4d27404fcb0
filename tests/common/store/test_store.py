"""The store: operations, deadlines, and strangers."""

import contextlib
import os
import socket
import threading
import time

import pytest

from horovod.common.contract.worker_env import make_key
from horovod.common.store import StoreClient, StoreServer, StoreTimeout
from tests.common.threads import run_ranks
from tests.runner.launching import eventually
from tests.security.test_store_limits import GREETING, LONG_COMMAND


@pytest.fixture
def key():
    return make_key()


@pytest.fixture
def server(key):
    with StoreServer(key) as made:
        yield made


@pytest.fixture
def client(key, server):
    with StoreClient(key, *server.address, timeout=30) as made:
        yield made


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_set_and_get(client):
    client.set("a", b"1")
    client.set("b", b"\0\xff" * 1000)
    client.set("a", b"2")
    assert client.get("a") == b"2"
    assert client.get_many(["b", "a"]) == [b"\0\xff" * 1000, b"2"]
    assert client.find("a") == b"2"
    assert client.find("c") is None


def test_peek_finds_a_value_without_waiting_and_other_calls_do_not_take_its_answer(client):
    assert client.peek("a") is None  # a request was sent
    client.set("a", b"1")  # answered after that request: not there yet
    deadline = time.monotonic() + 30
    while (found := client.peek("a")) is None and time.monotonic() < deadline:
        client.set("b", b"2")
    assert found == b"1"


def test_get_names_what_did_not_come(client):
    client.set("here", b"")
    begin = time.monotonic()
    with pytest.raises(StoreTimeout, match="absent") as caught:
        client.get_many(["here", "absent"], timeout=0.2)
    assert 0.15 < time.monotonic() - begin < 20
    assert caught.value.missing == ["absent"]
    client.set("absent", b"late")
    assert client.get("absent") == b"late"


def test_who_came_and_gave_up_is_not_missing(key, server, client):
    def meet(rank):
        with StoreClient(key, *server.address) as mine:
            mine.exchange("g", rank, 4, b"", 0.5 + rank)

    first, _, second, _ = run_ranks(4, meet, absent=[1, 3])
    assert isinstance(first, StoreTimeout)
    assert (first.missing, first.gave_up, second.missing, second.gave_up) == (["1", "3"], [], ["1", "3"], ["0"])


def test_who_waits_can_be_seen(key, server):
    def meet(rank, seconds):
        with StoreClient(key, *server.address) as mine, contextlib.suppress(StoreTimeout):
            mine.exchange("init", rank, 3, b"", seconds)

    assert (server.waiting(), server.completed) == ({}, 0)
    threads = [threading.Thread(target=meet, args=(2, 30))]
    threads[0].start()
    eventually(lambda: server.waiting() == {"init": (3, frozenset({2}))}, 30, "rank 2 waits")
    meet(0, 0.1)  # times out
    eventually(lambda: server.waiting() == {"init": (3, frozenset({2}))}, 30, "rank 2 waits alone again")
    for rank in (1, 0):
        threads.append(threading.Thread(target=meet, args=(rank, 30)))
        threads[-1].start()
    for thread in threads:
        thread.join(30)
    eventually(lambda: server.waiting() == {}, 30, "no rank waits")
    assert server.completed == 1
    server.close()
    assert server.waiting() == {}


def test_wrong_key_gets_nothing_and_disturbs_nobody(key, server, client):
    client.set("secret", b"s")
    stranger = StoreClient(make_key(), *server.address, timeout=0.3)
    try:
        with pytest.raises(StoreTimeout, match="job key") as caught:
            stranger.get("secret")
        assert caught.value.missing == []
        with pytest.raises(StoreTimeout):
            stranger.set("secret", b"forged", timeout=0.3)
    finally:
        stranger.close()
    assert client.get("secret") == b"s"


def test_right_server_key_but_foreign_client_key_is_refused(key, server, client):
    """A client that knows the server's public key but is not of this job passes CURVE, and must still be rejected."""
    import zmq

    from horovod.common.store.messages import curve_pair

    client.set("secret", b"s")
    context = zmq.Context()
    sock = context.socket(zmq.DEALER)
    sock.linger = 0
    sock.curve_publickey, sock.curve_secretkey = zmq.curve_keypair()
    sock.curve_serverkey = curve_pair(key, "server")[0]
    sock.connect("tcp://{}:{}".format(*server.address))
    import msgspec

    from horovod.common.store.messages import Get

    sock.send(msgspec.msgpack.encode(Get(1, ["secret"], 1.0)))
    assert not sock.poll(500)
    context.destroy(linger=0)
    assert client.get("secret") == b"s"


def test_a_member_that_talks_nonsense_is_ignored(key, server, client):
    client.set("a", b"1")
    client._socket.send(b"\xc1 not msgpack")
    client._socket.send(b"\x93\xa3set\x01")
    client._socket.send(b"\x94\xa3set\x01\xa1\xff\xc4\x00")  # a name that is not UTF-8
    client._socket.send_multipart([b"", b"", b""])
    assert client.get("a") == b"1"


def test_oversized_values_are_refused_before_sending(client):
    class Huge(bytes):
        def __len__(self):
            return 1 << 40

    with pytest.raises(ValueError, match=r"'big' must have at most 1048576 bytes, got 1099511627776"):
        client.set("big", Huge())


def test_close_frees_port_descriptors_and_thread(key):
    with StoreServer(key) as warm_up:
        assert warm_up.address[0] == "127.0.0.1"
    before = open_descriptors(), threading.active_count()
    for _ in range(20):
        server = StoreServer(key)
        with StoreClient(key, *server.address) as client:
            client.set("a", b"1")
        server.close()
        server.close()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(server.address, timeout=30)
    assert (open_descriptors(), threading.active_count()) == before


def test_a_server_that_is_gone_is_an_error_in_time(key):
    server = StoreServer(key)
    address = server.address
    server.close()
    begin = time.monotonic()
    with StoreClient(key, *address, timeout=0.2) as client, pytest.raises(StoreTimeout, match="launcher is gone"):
        client.get("a")
    assert time.monotonic() - begin < 30


def test_a_server_that_speaks_another_language_is_an_error_in_time(key):
    errors = []

    def ask(client):
        for _ in range(2):
            try:
                client.find("a")
            except StoreTimeout as error:
                errors.append(error)

    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        StoreClient(key, *listener.getsockname(), timeout=0.1) as client,
    ):
        sock, _ = listener.accept()
        with sock, contextlib.suppress(ConnectionError):
            sock.sendall(GREETING + LONG_COMMAND + (1 << 20).to_bytes(8, "big"))
            while sock.recv(1000):
                pass
        # ZeroMQ closes the connection permanently; later requests are lost.
        assert client.peek("a") is None
        asking = threading.Thread(target=ask, args=(client,), daemon=True)
        asking.start()
        asking.join(30)
        assert len(errors) == 2
        assert "no answer from the job's store" in str(errors[0])


def test_foreign_interface_is_refused(key):
    with pytest.raises(ValueError, match=r"host must be .*, got '192\.0\.2\.1'"):
        StoreServer(key, "192.0.2.1")
