"""HTTP server of the dashboard. It serves only loopback, and only clients whose URL contains the secret token.

Each connection has its own thread and a time limit. The server never waits for a client that stops reading; it closes
the connection instead.
"""

from __future__ import annotations

import contextlib
import hmac
import re
import secrets
import shlex
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path

import msgspec

from horovod._bounded_server import BoundedServer, HttpRequest
from horovod.runner.base.job_result import JobResult, LaunchError, describe_status
from horovod.runner.dashboard.sink import DashboardSink
from horovod.runner.dashboard.state import State
from horovod.runner.plan.settings import LaunchSettings

HOST = "127.0.0.1"
# Seconds between two updates of a page
INTERVAL = 1.0
PATIENCE = 5.0  # Timeout in seconds for receiving a request and for sending an update to a page
MAX_PAGES = 16
_MAX_CONNECTIONS = 64
_BUFFER = 256 << 10  # Size of a connection's send buffer in the kernel (bytes)
_PAGE = Path(__file__).with_name("page")
# Accepted Host headers. Any port is allowed, because an ssh tunnel to the dashboard can use another local port.
_HOSTS = re.compile(r"(127\.0\.0\.1|localhost)(:\d+)?", re.IGNORECASE)
_FILES = {
    "": ("index.html", "text/html; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
    "charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
}
_POLICY = "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

Feed = Callable[[int], tuple[int, bytes]]
"""Function that gets the version a page has. It returns the current version, and the changes since then as JSON."""


class Server:
    """HTTP server of the dashboard, which runs until `close` is called."""

    def __init__(self, port: int, feed: Feed) -> None:
        """Start serving on `port`, or on a free port if it is 0. Raises OSError if the port cannot be used."""
        self._token = secrets.token_urlsafe(24)
        self._over = threading.Event()
        self._closed = threading.Event()
        self._pages = _Count(MAX_PAGES)
        self._server = _Http((HOST, port), self._token, feed, self._pages, self._over)
        self.port = int(self._server.server_address[1])
        self.address = f"http://{HOST}:{self.port}/{self._token}/"

    def finish(self, seconds: float) -> None:
        """Wait up to `seconds` for all open pages to learn that the job has ended."""
        self._over.set()
        end = time.monotonic() + seconds
        while self._pages.used and time.monotonic() < end:
            time.sleep(0.01)

    def close(self) -> None:
        """Stop the server. Can be called repeatedly."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._over.set()
        self._server.close()


class _Count:
    """Thread-safe counter with an upper limit."""

    def __init__(self, limit: int) -> None:
        self._limit, self.used = limit, 0
        self._lock = threading.Lock()

    def take(self) -> bool:
        with self._lock:
            if self.used >= self._limit:
                return False
            self.used += 1
            return True

    def give(self) -> None:
        with self._lock:
            self.used -= 1


class _Http(BoundedServer):
    def __init__(self, address: tuple[str, int], token: str, feed: Feed, pages: _Count, over: threading.Event) -> None:
        self.token, self.feed, self.pages, self.over = token, feed, pages, over
        super().__init__(address, _Handler, _MAX_CONNECTIONS, PATIENCE, "hvd-page")


class _Handler(HttpRequest):
    server: _Http
    server_version, sys_version = "horovodrun", ""

    def do_GET(self) -> None:
        name = self._name()
        if name is None:
            return
        if name == "events":
            self._stream()
        elif name in _FILES:
            self._send_file(*_FILES[name])
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _name(self) -> str | None:
        """Return the requested page name. If the request is invalid, send an error and return None."""
        host = self.headers.get("Host", "")
        origin = self.headers.get("Origin")
        if _HOSTS.fullmatch(host) is None:
            # Reject requests from other sites whose host names resolve to this address (DNS rebinding).
            self.send_error(HTTPStatus.FORBIDDEN, "this host name is not served")
            return None
        if origin is not None and origin != f"http://{host}":
            self.send_error(HTTPStatus.FORBIDDEN, "other origins get nothing")
            return None
        token, slash, name = self.path.partition("?")[0].removeprefix("/").partition("/")
        if not slash or not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self.send_error(HTTPStatus.FORBIDDEN, "open the address that horovodrun has printed, with its token")
            return None
        if name != "" and self.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            self.send_error(HTTPStatus.FORBIDDEN, "other origins get nothing")
            return None
        return name

    def _send_file(self, name: str, kind: str) -> None:
        body = _PAGE.joinpath(name).read_bytes()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self) -> None:
        """Send server-sent events until the job ends or the browser stops reading."""
        if not self.server.pages.take():
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, f"{MAX_PAGES} pages are open already")
            return
        try:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            version, over = 0, False
            while not over:
                over = self.server.over.wait(INTERVAL if version else 0)
                version, changes = self.server.feed(version)
                # `sendall` raises an error if the page reads nothing for PATIENCE seconds.
                self.connection.sendall(b"data: " + changes + b"\n\n")
        except OSError:
            self.close_connection = True
        finally:
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_WR)
            self.server.pages.give()

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()


_FINAL_SECONDS = 2.0  # Seconds that the server waits at the end of the job for pages to receive the last update.


class Dashboard(DashboardSink):
    """Dashboard of one job. The launcher's loop updates its state, and other threads serve it."""

    def __init__(self, settings: LaunchSettings) -> None:
        """Start the HTTP server. Raises LaunchError if the port cannot be used."""
        self._began = time.monotonic()
        self._lock = threading.Lock()  # Lock that protects the state of the job
        self._phase = ""
        self._state = State(shlex.join(settings.whole_command), settings.slots)
        port = settings.dashboard or 0
        try:
            self._server = Server(port, self._changes)
        except (OSError, OverflowError) as error:
            why = (isinstance(error, OSError) and error.strerror) or str(error)
            raise LaunchError(
                f"--dashboard-port (HOROVOD_DASHBOARD_PORT) must be a free port of {HOST}, got {port}: {why}; give "
                "another one, or 0 for any"
            ) from None
        self.address = self._server.address

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _changes(self, version: int) -> tuple[int, bytes]:
        """Return the new version, and the changes since `version` as JSON.

        The JSON is encoded after the lock is released, so that the launcher's loop does not wait for it.
        """
        with self._lock:
            changes = self._state.since(version, self._now())
        return changes["version"], msgspec.json.encode(changes)

    def phase(self, name: str) -> None:
        if name != self._phase:
            self._phase = name
            with self._lock:
                self._state.phase(name)

    def started(self, pids: Sequence[tuple[int, int]]) -> None:
        with self._lock:
            for rank, pid in pids:
                self._state.started(rank, pid)

    def output(self, rank: int, stream: int, data: bytes) -> None:
        with self._lock:
            self._state.output(rank, stream, data)

    def launcher_message(self, text: str) -> None:
        with self._lock:
            self._state.add_message(text)

    def worker_report(self, line: bytes) -> None:
        with self._lock:
            self._state.add_report(line, self._now())

    def exited(self, rank: int, status: int, error: str) -> None:
        with self._lock:
            self._state.exited(rank, error or describe_status(status), failed=status != 0)

    def end(self, result: JobResult) -> None:
        stopped = signal.Signals(result.stopped_by).name if result.stopped_by else ""
        with self._lock:
            self._state.end(result.exit_code, result.message, result.failed_rank, self._now(), stopped)
        self._server.finish(_FINAL_SECONDS)
        self.close()

    def close(self) -> None:
        self._server.close()
