"""API server client for the simulated components. Objects are plain dicts."""

import http.client
import json
import ssl
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

SECONDS = 30.0
WATCH_SECONDS = 300
HOST, PORT = "127.0.0.1", 6443
MERGE = "application/merge-patch+json"
ADMIN = "token-of-admin"


class Refused(RuntimeError):
    """Error response of the API server, with the HTTP `status` and Kubernetes' `reason`."""

    def __init__(self, status: int, reply: dict[str, Any]) -> None:
        super().__init__(reply.get("message", f"HTTP {status}"))
        self.status = status
        self.reason = reply.get("reason", "")


def connect(seconds: float = SECONDS) -> http.client.HTTPSConnection:
    """Return a connection to the server. The server's self-signed certificate is not verified."""
    context = ssl._create_unverified_context()
    return http.client.HTTPSConnection(HOST, PORT, timeout=seconds, context=context)


class Client:
    """API server client for use by a single thread."""

    def __init__(self, token: str = ADMIN) -> None:
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        self._kept: http.client.HTTPSConnection | None = None

    def request(self, method: str, path: str, body: Any = None, content: str = "application/json") -> dict[str, Any]:
        """Send a request and return the parsed JSON response. Raises Refused or OSError."""
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, **({"Content-Type": content} if data else {})}
        for last in (False, True):
            self._kept = self._kept or connect()
            try:
                self._kept.request(method, path, data, headers)
                response = self._kept.getresponse()
                reply = json.loads(response.read() or b"{}")
            except (OSError, http.client.HTTPException):
                self._kept.close()
                self._kept = None
                if last or method == "POST":  # Never retry a POST, because the first attempt might have succeeded.
                    raise
                continue
            if response.status >= 300:
                raise Refused(response.status, reply)
            return reply  # type: ignore[no-any-return]
        raise AssertionError

    def patch(self, path: str, change: Any) -> dict[str, Any]:
        """Send a merge patch and return the parsed JSON response. Raises Refused or OSError."""
        return self.request("PATCH", path, change, MERGE)

    def follow(self, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Watch the objects under `path`.

        The generator first yields all objects as ("ADDED", object), then ("", {}), and then (event, object) for each
        event. It ends when the watch expires, after which the caller starts a new watch. Raises Refused, OSError.
        """
        found = self.request("GET", path)
        kind, version = found["kind"].removesuffix("List"), found["apiVersion"]
        for each in found["items"]:
            yield "ADDED", {"kind": kind, "apiVersion": version, **each}
        yield "", {}
        query = {
            "watch": "true",
            "resourceVersion": found["metadata"]["resourceVersion"],
            "timeoutSeconds": WATCH_SECONDS,
        }
        connection = connect(WATCH_SECONDS + SECONDS)
        try:
            connection.request("GET", f"{path}?{urlencode(query)}", headers=self._headers)
            response = connection.getresponse()
            if response.status >= 300:
                raise Refused(response.status, json.loads(response.read()))
            for line in response:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                yield event["type"], event["object"]
        finally:
            connection.close()
