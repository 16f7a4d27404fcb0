"""The dashboard's server on a real socket: access control, and clients that never delay it."""

import http.client
import json
import socket
import threading
import time
import urllib.parse

import pytest

from horovod.runner.dashboard import server as server_module
from horovod.runner.dashboard.server import Server
from tests.runner.launching import eventually


class Feed:
    """The data of a page: a number that grows, and some padding."""

    def __init__(self):
        self.ballast = 0
        self.calls = 0

    def __call__(self, version):
        self.calls += 1
        return version + 1, json.dumps({"version": version + 1, "ballast": "x" * self.ballast}).encode()


@pytest.fixture
def feed(monkeypatch):
    monkeypatch.setattr(server_module, "INTERVAL", 0.02)
    monkeypatch.setattr(server_module, "PATIENCE", 0.5)
    return Feed()


@pytest.fixture
def served(feed):
    server = Server(0, feed)
    yield server
    server.close()
    eventually(lambda: not [one for one in threading.enumerate() if one.name == "hvd-page"], 20, "all threads end")


def ask(served, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def path(served, name=""):
    return urllib.parse.urlsplit(served.address).path + name


def events(served):
    """Return a page's event stream, and the socket below it."""
    sock = socket.create_connection(("127.0.0.1", served.port), timeout=20)
    sock.sendall(f"GET {path(served, 'events')} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    return sock.makefile("rb"), sock


def test_requests_need_the_token(served):
    for name, kind in (
        ("", "text/html"),
        ("page.js", "text/javascript"),
        ("charts.js", "text/javascript"),
        ("page.css", "text/css"),
    ):
        response, body = ask(served, path(served, name))
        assert (response.status, response.headers["Content-Type"].partition(";")[0]) == (200, kind)
        assert body
        assert b"http://" not in body.replace(b"http://www.w3.org/2000/svg", b"")
        assert b"https://" not in body
        assert response.headers["Content-Security-Policy"].startswith("default-src 'self'; ")
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["Referrer-Policy"] == "no-referrer"
    token = path(served).strip("/")
    assert len(token) >= 32
    for other in (
        "/",
        "/events",
        "/page.js",
        f"/{token[:-1]}/",
        f"/{token}x/",
        f"/{token}",
        f"/{token[::-1]}/events",
        f"/?token={token}",
        "//",
        "/%C3%A9/",
    ):
        response, body = ask(served, other)
        assert response.status == 403, other
        assert token.encode() not in body
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as sock:
        sock.sendall(b"GET /\xe9\xff/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert sock.recv(100).split()[1] == b"403"
    for missing in ("x", "../server.py", "%2e%2e/server.py", "page/index.html", "/etc/passwd"):
        assert ask(served, path(served, missing))[0].status == 404, missing
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
        assert ask(served, path(served), method)[0].status == 501


def test_other_hosts_and_origins_are_refused(served):
    port = served.port
    # A page from another site whose name was made to resolve to this host.
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1.evil.example",
        "localhost.evil:80",
        "",
        "[::1]",
        "[",
    ):
        assert ask(served, path(served), Host=host)[0].status == 403, host
    assert ask(served, path(served), Host="localhost:9999")[0].status == 200  # through a tunnel
    for origin in ("http://evil.example", "null", "https://127.0.0.1", f"http://127.0.0.1:{port + 1}"):
        assert ask(served, path(served, "events"), Origin=origin)[0].status == 403, origin
    assert ask(served, path(served, "page.js"), Origin=f"http://127.0.0.1:{port}")[0].status == 200
    assert ask(served, path(served, "page.js"), **{"Sec-Fetch-Site": "cross-site"})[0].status == 403
    assert ask(served, path(served), **{"Sec-Fetch-Site": "cross-site"})[0].status == 200  # a link in a mail


def test_ports_in_use_or_out_of_range_are_errors(served, feed):
    with pytest.raises(OSError, match="in use"):
        Server(served.port, feed)


def test_pages_get_frequent_updates_until_the_end(served, feed):
    stream, sock = events(served)
    with sock, stream:
        head = [stream.readline() for _ in range(12)]
        assert head[0].split()[1] == b"200"
        assert b"Content-Type: text/event-stream\r\n" in head
        lines = [line for line in (stream.readline() for _ in range(9)) if line.startswith(b"data: ")]
        versions = [json.loads(line[6:])["version"] for line in lines]
        assert versions == list(range(versions[0], versions[0] + len(versions)))
        begin = time.monotonic()
        served.finish(120.0)
        assert time.monotonic() - begin < 60
        rest = stream.read()  # reads to the end of the stream
        assert rest.endswith(b"\n\n")
    stream, sock = events(served)  # a client that connects now still gets the last state
    with sock, stream:
        assert stream.read().count(b"data: ") == 1


def test_a_page_that_does_not_read_is_disconnected(served, feed):
    feed.ballast = 1 << 20
    slow = events(served)
    reading = events(served)
    eventually(lambda: served._pages.used == 2, 10, "two pages are open")
    done = threading.Event()

    def read():
        while not done.is_set() and reading[0].readline():
            pass

    thread = threading.Thread(target=read)
    thread.start()
    try:
        eventually(lambda: served._pages.used == 1, 20, "the slow page is hung up on")
        calls = feed.calls
        eventually(lambda: feed.calls > calls + 5, 20, "the other page is told more")
    finally:
        done.set()
        thread.join()
        for stream, sock in (slow, reading):
            stream.close()
            sock.close()
    eventually(lambda: served._pages.used == 0, 20, "the page that was closed is forgotten")
