"""Key server in rank 0, which sends a short secret to ranks that cannot get it any other way.

Sending is safe in two cases. Either the kernel or a shared key identifies the peer (``unix_key_server``), or the bytes
are a credential that only this user's processes can open. The server runs until the job is formed.
"""

import contextlib
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from horovod.common.security.auth import AuthError
from horovod.common.store.sockets import ThreadedServer

_TRIES = 16
_LIMIT = 8192
_VISIT_SECONDS = 5.0
_MAX_CONNECTIONS = 64  # maximum number of open connections
_PAUSE = 0.05


class Visit(Protocol):
    """Protocol of one connection. It does no I/O itself.

    The caller first sends ``outgoing``, and then receives ``bytes_wanted`` bytes. The connection is finished when
    ``outgoing`` is empty and ``bytes_wanted`` is 0.
    """

    outgoing: bytes

    @property
    def bytes_wanted(self) -> int: ...
    def receive(self, sock: socket.socket) -> None:
        """Process up to ``bytes_wanted`` bytes. Raises AuthError or OSError if the connection must be closed."""

    def close(self) -> None: ...


class FixedReply:
    """Protocol that sends the same data to every peer."""

    bytes_wanted = 0

    def __init__(self, data: bytes) -> None:
        self.outgoing = data

    def receive(self, sock: socket.socket) -> None:
        raise AuthError("nothing is asked")

    def close(self) -> None:
        pass


class KeyServer(ThreadedServer):
    """Server thread that runs a protocol on each connection.

    For each connection, ``begin`` returns the protocol, or None to close the connection immediately. The server closes
    a connection when its protocol has finished. If there are too many connections, it closes the oldest one.
    """

    def __init__(self, listeners: Sequence[socket.socket], begin: Callable[[socket.socket], Visit | None]) -> None:
        super().__init__("horovod-door", _VISIT_SECONDS)
        self._listeners = list(listeners)
        self._begin = begin
        # Protocol and deadline of each open connection.
        self._visits: dict[socket.socket, tuple[Visit, float]] = {}
        self._selector = selectors.DefaultSelector()
        self._start()

    def _serve(self) -> None:
        with self._selector, contextlib.ExitStack() as at_end:
            self._selector.register(self._stop, selectors.EVENT_READ)
            for listener in self._listeners:
                at_end.enter_context(listener)
                listener.setblocking(False)
                self._selector.register(listener, selectors.EVENT_READ)
            at_end.callback(self._end_all)
            while True:
                events = self._selector.select(1.0 if self._visits else None)
                for key, _ in events:
                    if key.fileobj == self._stop:
                        return
                    assert isinstance(key.fileobj, socket.socket)
                    if key.fileobj in self._visits:
                        self._go_on(key.fileobj)
                    elif key.fileobj in self._listeners:  # an earlier event in this loop can have closed the connection
                        self._accept(key.fileobj)
                for sock in [s for s, (_, until) in self._visits.items() if until < time.monotonic()]:
                    self._end(sock)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        # The peer closed the connection, or this process ran out of file descriptors. Either way, the peer retries.
        except OSError:
            time.sleep(_PAUSE)
            return
        visit = self._begin(sock)
        if visit is None:
            sock.close()
            return
        if len(self._visits) >= _MAX_CONNECTIONS:
            self._end(next(iter(self._visits)))
        sock.setblocking(False)
        self._visits[sock] = visit, time.monotonic() + _VISIT_SECONDS
        self._selector.register(sock, _events(visit))

    def _go_on(self, sock: socket.socket) -> None:
        visit, _ = self._visits[sock]
        try:
            if visit.outgoing:
                visit.outgoing = visit.outgoing[sock.send(visit.outgoing) :]
            else:
                visit.receive(sock)
        except BlockingIOError:
            return
        except (AuthError, OSError):
            self._end(sock)
            return
        if visit.outgoing or visit.bytes_wanted:
            self._selector.modify(sock, _events(visit))
        else:
            self._end(sock)

    def _end_all(self) -> None:
        for sock in list(self._visits):
            self._end(sock)

    def _end(self, sock: socket.socket) -> None:
        visit, _ = self._visits.pop(sock)
        visit.close()
        self._selector.unregister(sock)
        sock.close()


def _events(visit: Visit) -> int:
    return selectors.EVENT_WRITE if visit.outgoing else selectors.EVENT_READ


def listen(addresses: Sequence[str], ports: Sequence[int]) -> list[socket.socket]:
    """Listen on the first port that is free on all addresses, and return the sockets. Port 0 means any port.

    Raises:
        OSError: If none of the ports is free. The message names the ports.
    """
    trouble: OSError | None = None
    for port in ports if 0 not in ports else [0] * _TRIES:
        made: list[socket.socket] = []
        try:
            for address in addresses:
                sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
                made.append(sock)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((address, port))
                sock.listen(128)
                port = sock.getsockname()[1]
            return made
        except OSError as error:
            for sock in made:
                sock.close()
            trouble = error
    where = f"{', '.join(addresses)}: {trouble.strerror if trouble else ''}"
    which = f"none of the ports {ports[0]} to {ports[-1]} is free on" if ports[-1] else "cannot listen on"
    raise OSError(trouble.errno if trouble else 0, f"{which} {where}")


def read_all(sock: socket.socket, seconds: float) -> bytes:
    """Receive data until the peer closes the connection. Return b"" on timeout or if more than 8 KiB arrive."""
    deadline = time.monotonic() + seconds
    data = b""
    while len(data) <= _LIMIT:
        left = deadline - time.monotonic()
        if left <= 0:
            return b""
        sock.settimeout(left)
        more = sock.recv(_LIMIT + 1)
        if not more:
            return data
        data += more
    return b""
