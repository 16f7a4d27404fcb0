"""A real browser, and jobs whose dashboard it shows."""

import contextlib
import re
import shutil
import subprocess
import threading
import time
import urllib.parse

import pytest

from tests.runner.launching import LIMIT, launcher, marked_environment

_ADDRESS = re.compile(r"^horovodrun: live page: (http://127\.0\.0\.1:\d+/[\w-]+/)$", re.MULTILINE)


class Job:
    """A horovodrun job with a dashboard."""

    def __init__(self, arguments, environment=None, cwd=None):
        self.environment = marked_environment(environment)
        argv = launcher(["--dashboard", *arguments])
        self.process = subprocess.Popen(
            argv, env=self.environment, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        self.err = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        end = time.monotonic() + LIMIT
        while not _ADDRESS.search(self.err) and time.monotonic() < end and self.process.poll() is None:
            time.sleep(0.02)
        found = _ADDRESS.search(self.err)
        assert found, self.err
        self.address = found.group(1)

    def _read(self):
        for line in self.process.stderr:
            self.err += line.decode(errors="replace")

    def wait(self):
        """Wait for the job's end; return its exit code."""
        code = self.process.wait(LIMIT)
        self._reader.join()
        return code

    def close(self):
        if self.process.poll() is None:
            self.process.terminate()
        self.wait()
        self.process.stderr.close()


@contextlib.contextmanager
def job(*arguments, cwd=None, **environment):
    job = Job(arguments, environment, cwd)
    try:
        yield job
    finally:
        job.close()


@contextlib.contextmanager
def pages():
    """pages(address, width) opens a page in Chromium; external requests and page errors fail the test."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or pytest.skip("chromium is not installed")
    troubles = []
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])

        def page(address, width=1280, height=900, **options):
            page = browser.new_page(viewport={"width": width, "height": height}, **options)
            page.set_default_timeout(60_000)
            page.on("pageerror", lambda error: troubles.append(str(error)))
            page.on("dialog", lambda dialog: troubles.append(f"dialog {dialog.message}"))
            page.on("request", lambda request: _local(request.url, address, troubles))
            page.on("console", lambda message: _said(message.type, message.text, troubles))
            page.goto(address)
            return page

        yield page
        browser.close()
    assert troubles == []


def _said(kind, text, troubles):
    if kind == "error" and "ERR_CONNECTION_REFUSED" not in text and "ERR_INCOMPLETE_CHUNKED" not in text:
        troubles.append(text)


def _local(url, address, troubles):
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "data" and parts.netloc != urllib.parse.urlsplit(address).netloc:
        troubles.append(f"a request to {url}")
