"""Where a rank gets the job's key from rank 0 when they have no other way to each other: a listener in rank 0 that
hands out a few bytes, safe by what it is (an abstract Unix socket, where the kernel tells both sides whose process the
other is) or by what it gives (a credential that only this user's processes can open). Open until the job is formed.
"""

import contextlib
import hashlib
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence

from horovod.common.secret import Secret

_NAMES = 4
_TRIES = 16
_LIMIT = 8192
_SEND_SECONDS = 5.0
_MOST = 64  # connections at a time
_PAUSE = 0.05
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class Door:
    """Gives each connection what ``answer`` returns for it (None: nothing) and closes it; a thread of its own."""

    def __init__(self, listeners: Sequence[socket.socket], answer: Callable[[socket.socket], bytes | None]) -> None:
        self._listeners = list(listeners)
        self._answer = answer
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="horovod-door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """May be called again."""
        if not self._closed:
            self._closed = True
            os.eventfd_write(self._stop, 1)
            self._thread.join(timeout=_SEND_SECONDS)
            if not self._thread.is_alive():  # else it still uses that descriptor, when it is done with what holds it up
                os.close(self._stop)

    def _serve(self) -> None:
        pending: dict[socket.socket, tuple[bytes, float]] = {}
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as open_sockets:
            selector.register(self._stop, selectors.EVENT_READ)
            for listener in self._listeners:
                open_sockets.enter_context(listener)
                listener.setblocking(False)
                selector.register(listener, selectors.EVENT_READ)
            while True:
                events = selector.select(1.0 if pending else None)
                for key, _ in events:
                    if key.fileobj == self._stop:
                        for sock in pending:
                            sock.close()
                        return
                    assert isinstance(key.fileobj, socket.socket)
                    if key.fileobj in pending:
                        self._send(key.fileobj, pending, selector)
                    else:
                        self._accept(key.fileobj, pending, selector)
                for sock in [s for s, (_, until) in pending.items() if until < time.monotonic()]:
                    _drop(sock, pending, selector)

    def _accept(
        self,
        listener: socket.socket,
        pending: dict[socket.socket, tuple[bytes, float]],
        selector: selectors.BaseSelector,
    ) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:  # gone again, or no descriptors: whoever needs us comes again
            time.sleep(_PAUSE)
            return
        data = self._answer(sock) if len(pending) < _MOST else None
        if data is None:
            sock.close()
            return
        sock.setblocking(False)
        pending[sock] = data, time.monotonic() + _SEND_SECONDS
        selector.register(sock, selectors.EVENT_WRITE)

    def _send(
        self, sock: socket.socket, pending: dict[socket.socket, tuple[bytes, float]], selector: selectors.BaseSelector
    ) -> None:
        data, until = pending[sock]
        try:
            left = data[sock.send(data) :]
        except BlockingIOError:
            return
        except OSError:
            left = b""
        if left:
            pending[sock] = left, until
        else:
            _drop(sock, pending, selector)


def _drop(
    sock: socket.socket, pending: dict[socket.socket, tuple[bytes, float]], selector: selectors.BaseSelector
) -> None:
    selector.unregister(sock)
    del pending[sock]
    sock.close()


def open_local(job: str, payload: bytes) -> Door:
    """For the ranks of ``job`` on this host that belong to this user. Raises OSError when no name is free."""
    for name in _local_names(job):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(name)
        except OSError:  # another user's, who cannot do more harm by it than this
            sock.close()
            continue
        sock.listen(128)
        return Door([sock], lambda peer: payload if _peer_uid(peer) == os.geteuid() else None)
    raise OSError("all names for the meeting of the ranks on this host are taken by other processes")


def knock_local(job: str, seconds: float) -> bytes | None:
    """What ``open_local`` gives, waiting for it; None when it did not open."""
    deadline = time.monotonic() + seconds
    while True:
        for name in _local_names(job):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock, contextlib.suppress(OSError):
                # Another user's socket may let us wait, too.
                seconds = max(_PAUSE, min(_SEND_SECONDS, deadline - time.monotonic()))
                sock.settimeout(seconds)
                sock.connect(name)
                data = Secret(read_all(sock, seconds) if _peer_uid(sock) == os.geteuid() else b"")
                if data:
                    return data
        if time.monotonic() >= deadline:
            return None
        time.sleep(_PAUSE)


def listen(addresses: Sequence[str], ports: Sequence[int]) -> list[socket.socket]:
    """Listening sockets on all addresses at the first of the ports that is free on all (0: any).

    Raises OSError naming the ports when none is.
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
    """What comes until the other side closes, 8 KiB at most; empty when it is more or takes longer than ``seconds``."""
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


def _local_names(job: str) -> list[str]:
    # The name is no secret; it only keeps jobs apart.
    digest = hashlib.sha256(f"{os.geteuid()}/{job}".encode()).hexdigest()[:32]
    return [f"\0horovod-meet-{digest}-{number}" for number in range(_NAMES)]


def _peer_uid(sock: socket.socket) -> int:
    uid: int = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1]
    return uid
