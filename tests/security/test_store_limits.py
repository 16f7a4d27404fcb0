"""Resources of the store's process that faulty members and many strangers can take, and their limits."""

import contextlib
import os
import re
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from horovod.common.contract.kernel import make_room
from horovod.common.store import StoreClient, StoreError, StoreServer
from horovod.common.store import messages as store_messages
from horovod.common.store import sockets as store_sockets
from horovod.common.store import table as store_table
from horovod.common.store.messages import MAX_VALUE_BYTES
from tests.runner.launching import eventually

KEY = b"k" * 32
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE".ljust(23, b"\0") + bytes(32)
LONG_COMMAND = b"\x06"  # ZMTP: an eight-byte length follows


def send(client, data):
    client._socket.send_multipart(store_messages.frames(data))


def nested(tag):
    """Return a request with nested arrays at an invalid place, deeper than any stack."""
    return b"\x93" + bytes([0xA0 + len(tag)]) + tag + b"\x91" * 200_000


def test_a_request_nested_too_deeply_does_not_end_the_store():
    with StoreServer(KEY) as server, StoreClient(KEY, *server.address) as client:
        client.set("a", b"1")
        for data in (
            nested(b"set"),
            nested(b"get"),
            b"\x91" * 200_000,
            b"\x96\xa3set\x01\xa1a\xc4\x00" + b"\x91" * 99_999,
        ):
            send(client, data)
        assert client.get("a") == b"1"


def test_too_long_requests_are_refused_by_the_client(monkeypatch):
    with StoreServer(KEY) as server, StoreClient(KEY, *server.address, timeout=60) as client:
        with pytest.raises(ValueError, match="must have at most"):
            client.get_many([f"{number:0500d}" for number in range(5000)])
        client.set("a", bytes(MAX_VALUE_BYTES))
        assert len(client.get("a")) == MAX_VALUE_BYTES
        with pytest.raises(StoreError, match="more than the accepted"):
            client.get_many(["a"] * 60_000)
    assert store_messages.MAX_REQUEST_BYTES < 2 << 20
    assert store_table.MAX_TOTAL_BYTES <= 1 << 30


SERVER = """
import os, resource, sys
from horovod.common.contract import kernel
from horovod.common.store import sockets as store_sockets
if sys.argv[1] == "few":
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
else:
    store_sockets._STRANGERS, store_sockets.HANDSHAKE_SECONDS = int(sys.argv[1]), 2.5
    kernel.make_room(2000)
from horovod.common.store import StoreServer
with StoreServer(b"k" * 32) as server:
    print(*server.address, flush=True)
    while sys.stdin.readline():  # a line: can this process still open files?
        print(len([os.open(os.devnull, os.O_RDONLY) for _ in range(8)]), flush=True)
"""


@contextlib.contextmanager
def server(strangers):
    """Yield (process, client, address) of a store in a separate process with a limit of strangers.

    "few": a process that may have 128 open descriptors.
    """
    command = [sys.executable, "-c", SERVER, str(strangers)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        try:
            host, port = process.stdout.readline().split()
            with StoreClient(KEY, host, int(port), timeout=60) as client:
                client.set("a", b"1")
                yield process, client, (host, int(port))
        finally:
            process.kill()


def new_client_is_served(address):
    """Check that a new client is served once strangers have been dropped."""
    with StoreClient(KEY, *address, timeout=60) as newcomer:
        return newcomer.get("a") == b"1"


def descriptors(process):
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def sequentially(count, client):
    """Yield numbers, with time for the store to check between them."""
    for number in range(count):
        yield number
        assert client.get("a") == b"1"


@contextlib.contextmanager
def strangers(address, numbers):
    sockets = []
    try:
        for _ in numbers:
            stranger = socket.socket()
            stranger.setblocking(False)
            stranger.connect_ex(address)
            sockets.append(stranger)
        yield sockets
    finally:
        for stranger in sockets:
            stranger.close()


def test_strangers_cannot_take_all_descriptors():
    with server("few") as (process, client, address), strangers(address, sequentially(130, client)):
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "8\n"
        assert descriptors(process) < 128
        assert new_client_is_served(address)


@pytest.mark.parametrize("most", [1 << 20, resource.RLIM_INFINITY])
def test_strangers_are_limited_without_a_descriptor_limit(monkeypatch, most):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (most, most))
    used = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(store_sockets, "_MAX_DESCRIPTORS", used + 100)
    listener = store_sockets.listen("127.0.0.1")
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        accepts = store_sockets.AcceptControl(socket, [listener])

        def closed():
            accepts.check()
            return accepts.closed

        try:
            assert not closed()
            with strangers(listener.getsockname(), range(60)):  # both ends of each connection belong to this process
                eventually(closed, 60, "the listener is closed")
        finally:
            accepts.close()


def peak_memory(process):
    """Return the process's peak memory in MB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024


@pytest.mark.parametrize("size", [1 << 20, pytest.param(store_messages.MAX_FRAME_BYTES, marks=pytest.mark.heavy)])
def test_strangers_do_not_fill_memory_with_messages_that_lack_a_byte(size):
    """A thousand hellos of the declared length, less one byte."""
    make_room(1100)
    message = GREETING + LONG_COMMAND + size.to_bytes(8, "big") + b"x" * (size - 1)
    with server(store_sockets._STRANGERS) as (process, _, address), strangers(address, range(1000)) as sockets:
        before = peak_memory(process)
        for stranger in sockets:
            stranger.setblocking(True)
            with contextlib.suppress(OSError):  # the store closes the connection
                stranger.sendall(message)
        with StoreClient(KEY, *address, timeout=60) as client:
            client.set("a", bytes(MAX_VALUE_BYTES))  # by its answer, everything sent before has been processed
            assert len(client.get("a")) == MAX_VALUE_BYTES
        assert peak_memory(process) - before < 128


@pytest.mark.heavy
def test_strangers_use_only_their_own_places():
    most = 40
    with server(most) as (process, client, address), contextlib.ExitStack() as stack:
        before = descriptors(process)
        members = [stack.enter_context(StoreClient(KEY, *address, timeout=60)) for _ in range(most)]
        assert [member.get("a") for member in members] == [b"1"] * most  # a known member takes no slot
        with strangers(address, sequentially(3 * most, client)):
            assert descriptors(process) - before <= 2 * most + 4
            assert new_client_is_served(address)
