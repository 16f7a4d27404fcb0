"""Threaded server that resists overload by unauthenticated clients, for HTTP and other protocols.

A client may connect and then send nothing, or send slowly. Therefore a deadline applies to the whole request, not to
each read. The number of connections is limited: above the limit, the server closes the oldest connection without a
complete request. A well-behaved client sends its request within milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

_BACKLOG = 32
# Seconds to wait before the next accept if the process has run out of file descriptors.
_REST = 0.1


class HttpRequest(BaseHTTPRequestHandler):
    """Base class of HTTP handlers. It tells the server when a request is complete."""

    server: BoundedServer  # type: ignore[assignment]

    def parse_request(self) -> bool:
        complete = super().parse_request()
        self.server.received(self.connection)
        return complete

    def log_message(self, format: str, *args: object) -> None:
        pass


class BoundedServer:
    """Threaded server with limits on connections and request times. It runs until `close` is called.

    Args:
        address: Host and port (0: any port), or a listening socket, which is closed at the end.
        handler: Called in a thread with connection, client's address and this server. It must call `received` when the
            request is complete, as an `HttpRequest` does.
        most: Maximum number of connections.
        patience: Seconds within which the whole request must arrive, and each piece of the answer must be received.
        name: Name of the threads.
        grace: Seconds during which a connection is not closed in favor of another one, which waits. For servers to
            which very many clients may connect at once.

    Raises:
        OSError: If the port is not available.
    """

    def __init__(
        self,
        address: tuple[str, int] | socket.socket,
        handler: Callable[[socket.socket, Any, Any], object],
        limit: int = 64,
        patience: float = 5.0,
        name: str = "hvd-server",
        grace: float = 0.0,
    ) -> None:
        self._handler, self._limit, self._patience, self._name, self._grace = handler, limit, patience, name, grace
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        # Deadline of each connection's request, oldest first.
        self._silent: dict[socket.socket, float] = {}
        self._closed = threading.Event()
        self._socket = address if isinstance(address, socket.socket) else _listening(*address)
        self.server_address = self._socket.getsockname()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def connections(self) -> int:
        """Number of open connections."""
        with self._lock:
            return len(self._open)

    def received(self, connection: socket.socket) -> None:
        """Record that the request on a connection has been fully received."""
        with self._lock:
            self._silent.pop(connection, None)

    def close(self) -> None:
        """Stop accepting connections, and close connections whose request is incomplete. Can be called repeatedly."""
        if self._closed.is_set():
            return
        self._closed.set()
        with contextlib.suppress(OSError):
            # Wake the thread that accepts connections, so that it exits.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        with self._lock:
            for connection in list(self._silent):
                self._end(connection)

    def leave_in_child(self) -> None:
        """Close the listening socket in a forked child, which has no server threads."""
        self._socket.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._socket.settimeout(self._expire())
                connection, client = self._socket.accept()
            except TimeoutError:
                continue
            except OSError:
                # The process might have run out of file descriptors, so close the oldest connection with an incomplete
                # request. The error can also mean that the server is closed or the client has disconnected.
                with self._lock:
                    self._end_oldest()
                self._closed.wait(_REST)
                continue
            self._take(connection, client)

    def _expire(self) -> float | None:
        """Close connections past their deadline, and return the seconds until the next deadline, or None."""
        now = time.monotonic()
        with self._lock:
            for connection, until in list(self._silent.items()):
                if until > now:
                    return until - now
                self._end(connection)
        return None

    def _take(self, connection: socket.socket, client: object) -> None:
        connection.settimeout(self._patience)
        if not self._make_room():
            connection.close()
            return
        with self._lock:
            self._open.add(connection)
            self._silent[connection] = time.monotonic() + self._patience
        try:
            threading.Thread(target=self._serve, args=(connection, client), name=self._name, daemon=True).start()
        except RuntimeError:
            # Drop the connection, because the system cannot start more threads.
            self._forget(connection)

    def _make_room(self) -> bool:
        """Make room for a new connection, and return True if it can be accepted.

        If the limit is reached, this closes the oldest connection without a complete request.
        """
        while not self._closed.is_set():
            with self._lock:
                if len(self._open) < self._limit:
                    return True
                oldest = next(iter(self._silent), None)
                if oldest is None:
                    return False
                left = self._silent[oldest] - self._patience + self._grace - time.monotonic()
                if left <= 0:
                    self._end(oldest)
                    return True
            self._closed.wait(min(left, _REST))
        return False

    def _end_oldest(self) -> bool:
        """Close the oldest connection whose request is incomplete. Return False if there is none."""
        oldest = next(iter(self._silent), None)
        if oldest is None:
            return False
        self._end(oldest)
        return True

    def _end(self, connection: socket.socket) -> None:
        """Shut down a connection. Its thread then closes the socket."""
        self._silent.pop(connection, None)
        self._open.discard(connection)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def _serve(self, connection: socket.socket, client: object) -> None:
        # Ignore handler errors, because a client can disconnect early or read too slowly.
        with contextlib.suppress(Exception):
            self._handler(connection, client, self)
            connection.shutdown(socket.SHUT_WR)
        self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._silent.pop(connection, None)
            self._open.discard(connection)
        connection.close()


def _listening(host: str, port: int) -> socket.socket:
    # Do not use HTTPServer, because it looks up this machine's name, which can be slow.
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, where = found[0]
    both = family == socket.AF_INET6 and host in ("", "::") and socket.has_dualstack_ipv6()
    try:
        return socket.create_server((str(where[0]), port), family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        # Drop the error's own text, which repeats the address.
        raise OSError(error.errno, os.strerror(error.errno or 0)) from None
