"""The HTTP server of the dashboard, the metrics and the timeline's view: idle strangers do not block its clients."""

import contextlib
import socket
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from horovod._bounded_server import BoundedServer, HttpRequest
from tests.runner.launching import eventually


class Answer(HttpRequest):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"here")


@pytest.fixture
def server():
    server = BoundedServer(("127.0.0.1", 0), Answer, limit=8, patience=1.0, name="test-http")
    yield server
    server.close()
    server.close()
    eventually(lambda: not [one for one in threading.enumerate() if one.name == "test-http"], 20, "all threads ended")


def ask(server):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}/x", timeout=20) as response:
        return response.read()


def stranger(server, data=b""):
    sock = socket.create_connection(server.server_address, timeout=20)
    sock.sendall(data)
    return sock


def closed(sock):
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_requests_sent_byte_by_byte_have_one_deadline(server):
    slow = stranger(server, b"GET / HTTP/1.1\r\nA: ")
    begin = time.monotonic()
    with slow:
        while not closed(slow) and time.monotonic() - begin < 20:
            with contextlib.suppress(OSError):
                slow.send(b"a")
            time.sleep(0.05)
        assert time.monotonic() - begin < 20
    eventually(lambda: server.connections == 0, 20, "it is forgotten")


def test_the_oldest_without_a_request_goes_first(monkeypatch):
    server = BoundedServer(("127.0.0.1", 0), Answer, limit=8, patience=1000.0, name="test-http")
    strangers = [stranger(server, b"G") for _ in range(8)]
    try:
        eventually(lambda: server.connections == 8, 20, "all places are taken")
        assert ask(server) == b"here"
        eventually(lambda: closed(strangers[0]), 20, "the oldest is hung up on")
        assert not any(map(closed, strangers[1:]))
        more = [stranger(server) for _ in range(100)]
        assert ask(server) == b"here"
        assert server.connections <= 8
        strangers += more
    finally:
        for sock in strangers:
            sock.close()
        server.close()


def test_many_clients_are_served_in_time():
    """A connection that has not sent its request yet is not closed in favour of a newer one."""
    server = BoundedServer(("127.0.0.1", 0), Answer, limit=4, patience=20.0, name="test-http", grace=0.5)
    clients = [stranger(server) for _ in range(4)]
    try:
        eventually(lambda: server.connections == 4, 20, "all places are taken")
        with ThreadPoolExecutor() as pool:
            other = pool.submit(ask, server)
            for client in clients:
                client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert all(client.recv(100).startswith(b"HTTP/1.0 200") for client in clients)
            assert other.result() == b"here"
    finally:
        for sock in clients:
            sock.close()
        server.close()
