"""API server proxy that emulates features of later Kubernetes versions for the cluster's clients.

The proxy preserves fields of Jobs that Kubernetes 1.20 lacks. Pods that are evicted through the API get the condition
DisruptionTarget, as in Kubernetes 1.26 and later. The proxy forwards credentials, so the server authenticates and
authorizes clients.
"""

import http.client
import json
import re
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tools.kubernetes_bed import kept
from tools.kubernetes_bed.client import WATCH_SECONDS, Client, connect

JOBS = re.compile(r"^/apis/batch/v1/(?:namespaces/[^/]+/)?jobs(/[^/]+)?$")
EVICTION = re.compile(r"^(/api/v1/namespaces/[^/]+/pods/[^/]+)/eviction$")
NOT_PASSED = {
    "connection",
    "keep-alive",
    "transfer-encoding",
    "content-length",
    "te",
    "trailer",
    "host",
    "accept-encoding",
}
STREAM_SECONDS = WATCH_SECONDS * 4.0


class Handler(BaseHTTPRequestHandler):
    """Handler of one client connection. It forwards requests to the server over a separate connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self._server: http.client.HTTPSConnection | None = None

    def finish(self) -> None:
        if self._server:
            self._server.close()
        super().finish()

    def log_message(self, *_: object) -> None:
        pass

    def _pass(self) -> None:
        parts = urlsplit(self.path)
        jobs = JOBS.match(parts.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
        headers = {name: value for name, value in self.headers.items() if name.lower() not in NOT_PASSED}
        if jobs:
            headers["Accept"] = "application/json"
            body = self._to_server(body, jobs)
        evicted = EVICTION.match(parts.path)
        if evicted and self.command == "POST":
            mark_disrupted(evicted[1])
        try:
            response = self._ask(body, headers)
        except (OSError, http.client.HTTPException) as error:
            self._say(
                502, {"kind": "Status", "status": "Failure", "code": 502, "message": f"the bed's server: {error}"}
            )
            return
        watches = jobs and parse_qs(parts.query).get("watch", [""])[0] in ("1", "true")
        if response.getheader("Content-Length") is None and response.status == 200:
            self._stream(response, map(_event, response) if watches else _pieces(response))
        else:
            found = response.read()
            self._give(response.status, _answered(found) if jobs else found, response.getheader("Content-Type") or "")

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = _pass

    def _to_server(self, body: bytes | None, jobs: re.Match[str]) -> bytes | None:
        if not body or self.command not in ("POST", "PUT", "PATCH"):
            return body
        content = json.loads(body)
        if self.command != "PATCH":
            return json.dumps(kept.stored(content)).encode()
        if isinstance(content, dict) and jobs[1]:
            content = kept.patched(content, Client().request("GET", urlsplit(self.path).path))
        return json.dumps(content).encode()

    def _ask(self, body: bytes | None, headers: dict[str, str]) -> http.client.HTTPResponse:
        if self._server is None:
            self._server = connect(STREAM_SECONDS)
        self._server.request(self.command, self.path, body, headers)
        return self._server.getresponse()

    def _say(self, status: int, body: dict[str, Any]) -> None:
        self._give(status, json.dumps(body).encode(), "application/json")

    def _give(self, status: int, body: bytes, content: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content or "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, response: http.client.HTTPResponse, pieces: Iterator[bytes]) -> None:
        self.send_response(response.status)
        self.send_header("Content-Type", response.getheader("Content-Type") or "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        try:
            for piece in pieces:
                self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
        except (OSError, http.client.HTTPException):
            # Close both ends of the forwarded connection, because the client or the server has closed one of them.
            self.close_connection = True
            if self._server:
                self._server.close()
                self._server = None


def _pieces(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while piece := response.read1(1 << 16):
        yield piece


def _event(line: bytes) -> bytes:
    event = json.loads(line)
    if event["object"].get("kind") == "Job":
        event["object"] = kept.shown(event["object"])
    return json.dumps(event).encode() + b"\n"


def _answered(body: bytes) -> bytes:
    content = json.loads(body)
    if content.get("kind") == "Job":
        content = kept.shown(content)
    elif content.get("kind") == "JobList":
        content = {**content, "items": [kept.shown(each) for each in content["items"]]}
    return json.dumps(content).encode()


def mark_disrupted(path: str, reason: str = "EvictionByEvictionAPI") -> None:
    """Set a pod's DisruptionTarget condition before an eviction, as Kubernetes 1.26 does. Raise Refused if it fails."""
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "Eviction API: evicting"}
    client = Client()
    conditions = client.request("GET", path)["status"].get("conditions", [])
    rest = [each for each in conditions if each["type"] != condition["type"]]
    client.patch(f"{path}/status", {"status": {"conditions": [*rest, condition]}})


def serve(address: str, port: int, certificate: str) -> None:
    """Start threads that serve clients until the process exits.

    The proxy uses TLS, because clients do not send tokens without it. `certificate` is a file that contains both the
    certificate and its key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def finish_request(self, request: Any, client_address: Any) -> None:
            super().finish_request(context.wrap_socket(request, server_side=True), client_address)

        def handle_error(self, *_: Any) -> None:
            # Ignore the error, because it only means that the client has closed the connection.
            pass

    server = Server((address, port), Handler)
    threading.Thread(target=server.serve_forever, name="proxy", daemon=True).start()
