"""PyTorch's index is queried only if its answer matters, and an index without an answer delays nothing."""

import http.server
import threading
import time

import pytest

from tools.packages import probe

VERSION = "2.13.0"


def wheel_name(version):
    tag = next(tag for tag in sorted(probe.tags()) if not tag.endswith("any"))
    return f"torch-{version}+cpu-{tag}.whl"


class FakeIndex(http.server.BaseHTTPRequestHandler):
    """Serves `page` at /torch/ after `ready` is set."""

    page = ""
    ready = threading.Event()
    requests = 0

    def do_GET(self):
        type(self).requests += 1
        self.ready.wait(60)
        self.send_response(200 if self.path == "/torch/" else 404)
        self.end_headers()
        self.wfile.write(self.page.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def index(monkeypatch):
    """Return a function that starts an index with a page, and returns its handler class and its URL."""
    monkeypatch.setattr(probe, "gpu", lambda: None)
    monkeypatch.setenv("no_proxy", "*")
    servers = []

    def start(page, responds=True):
        ready = threading.Event()
        handler = type("Handler", (FakeIndex,), {"page": page, "ready": ready})
        if responds:
            ready.set()
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append((server, ready))
        return handler, f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server, ready in servers:
        ready.set()
        server.shutdown()
        server.server_close()


def link(version):
    name = wheel_name(version).replace("+", "%2B")
    return f'<a href="https://files.example/{name}#sha256=00">torch</a>'


def test_an_index_with_this_version_is_used(index):
    _, url = index(link("2.12.0") + link(VERSION))
    choice = probe.pytorch(VERSION, {}, url, deadline=60)
    assert choice.arguments == (f"torch=={VERSION}+cpu", "--extra-index-url", url)


def test_an_index_without_this_version_is_named(index):
    _, url = index(link("2.12.0"))
    choice = probe.pytorch(VERSION, {}, url, deadline=60)
    assert choice.arguments == (f"torch=={VERSION}",)
    assert f"{url} has none of {VERSION}" in choice.reason


def test_an_unresponsive_index_is_given_up(index):
    _, url = index(link(VERSION), responds=False)
    start = time.monotonic()
    choice = probe.pytorch(VERSION, {}, url, deadline=0.2)
    assert time.monotonic() - start < 30
    assert choice.arguments == (f"torch=={VERSION}",)
    assert "no answer within 0.2 s" in choice.reason or "timed out" in choice.reason


@pytest.mark.parametrize("form", ["{}", "file://{}", "/is/not/there https://no.example {}"])
def test_a_local_wheel_is_used_without_the_index(index, tmp_path, form):
    handler, url = index(link(VERSION))
    (tmp_path / wheel_name(VERSION)).touch()
    choice = probe.pytorch(VERSION, {"find-links": form.format(tmp_path)}, url)
    assert choice.arguments == (f"torch=={VERSION}+cpu",)
    assert handler.requests == 0
