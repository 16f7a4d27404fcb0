"""The store: operations, deadlines, and strangers."""

import contextlib
import os
import socket
import threading
import time

import pytest

from horovod.common.contract.worker_env import make_key
from horovod.common.store import StoreClient, StoreServer, StoreTimeout
from tests.runner.launching import eventually


@pytest.fixture
def key():
    return make_key()


@pytest.fixture
def server(key):
    with StoreServer(key) as server:
        yield server


@pytest.fixture
def client(key, server):
    with StoreClient(key, *server.address, timeout=30) as client:
        yield client


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


def test_peek_does_not_wait_or_mix_up_responses(client):
    assert client.peek("a") is None  # a request was sent
    client.set("a", b"1")  # answered after that request: not there yet
    deadline = time.monotonic() + 30
    while (found := client.peek("a")) is None and time.monotonic() < deadline:
        client.set("b", b"2")
    assert found == b"1"


def test_get_names_missing_values(client):
    client.set("here", b"")
    begin = time.monotonic()
    with pytest.raises(StoreTimeout, match="absent") as caught:
        client.get_many(["here", "absent"], timeout=0.2)
    assert 0.15 < time.monotonic() - begin < 20
    assert caught.value.missing == ["absent"]
    client.set("absent", b"late")
    assert client.get("absent") == b"late"


def test_waiting_clients_are_listed(key, server):
    def meet(rank, seconds):
        with StoreClient(key, *server.address) as client, contextlib.suppress(StoreTimeout):
            client.exchange("init", rank, 3, b"", seconds)

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


def test_wrong_keys_get_nothing_and_disturb_no_rank(key, server, client):
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


def test_a_lost_server_is_a_timely_error(key):
    server = StoreServer(key)
    address = server.address
    server.close()
    begin = time.monotonic()
    with StoreClient(key, *address, timeout=0.2) as client, pytest.raises(StoreTimeout, match="launcher is gone"):
        client.get("a")
    assert time.monotonic() - begin < 30
