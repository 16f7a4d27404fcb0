"""Liveness connection between the driver and each worker.

No data is sent over it. The kernel closes it when either end's process dies, so the other end notices at once. A
cluster manager may take ten seconds or more to notice the loss of a machine, and may leave processes running when a
part of it dies. A worker that is stopped or hangs keeps its connection; `pulse` finds it by its silence.

The connection is authenticated with a key derived from the job's key. The worker exits when the driver is gone, or when
a process ends on which it depends.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import zmq

from horovod.common.network import tcp_options
from horovod.common.security import auth
from horovod.common.security.auth import AuthError, derive_key
from horovod.common.store.sockets import ThreadedServer
from horovod.runner.external_workers.mailbox import LONGEST
from horovod.runner.external_workers.pulse import HeartbeatClient, HeartbeatServer

_LABEL = "lifeline"
_PURPOSE = 127
_HANDSHAKE = 5.0  # s for a peer to authenticate
_SILENT = 1.0  # s for its first bytes when all places are taken
_UNAUTHENTICATED = 64  # maximum unauthenticated peers at once; others wait in the kernel's backlog
_CLOSE = 5.0


class LivenessServer(ThreadedServer):
    """Driver's ends of all connections, served by a thread until `close`.

    The thread calls ``gone`` with the number of a worker whose connection has closed or broken, and an empty text. For
    a silent worker, the text describes that. Its connection is then closed, so that it exits if it continues.
    """

    def __init__(
        self,
        listener: socket.socket,
        heartbeats: socket.socket,
        job_key: bytes,
        silence: float,
        gone: Callable[[int, str], None],
    ) -> None:
        """Start the thread that serves the connections.

        Args:
            listener: Listening socket for the connections; owned by this object.
            heartbeats: Listening socket for heartbeats; owned by this object.
            job_key: Key of the job.
            silence: Seconds without an answer after which a worker, or its host, is lost.
            gone: Called when a worker is lost.
        """
        super().__init__("horovod-lines", _CLOSE)
        self._listener = listener
        self._key = derive_key(job_key, _LABEL)
        self._silence = silence
        self._gone = gone
        self._poller = zmq.Poller()
        self._unauthenticated: dict[socket.socket, tuple[auth.Acceptor, float]] = {}
        self._members: dict[socket.socket, int] = {}
        try:
            self._heartbeats = HeartbeatServer(heartbeats, job_key, silence)
        except BaseException:
            listener.close()
            super().close()
            raise
        self._start()

    @property
    def there(self) -> int:
        """Number of connected workers. May be read from any thread."""
        return len(self._members)

    def _serve(self) -> None:
        self._listener.setblocking(False)
        for source in (self._listener, self._stop, *self._heartbeats.sources):
            self._poller.register(source, zmq.POLLIN)
        try:
            while True:
                until = min([self._heartbeats.next_time(), *map(self._due, self._unauthenticated)])
                left = min(max(0.0, until - time.monotonic()), LONGEST)
                ready = dict(self._poller.poll(math.ceil(1000 * left)))
                if self._stop in ready:
                    return
                for sock in [
                    s for s in (self._listener, *self._unauthenticated, *self._members) if s.fileno() in ready
                ]:
                    self._serve_one(sock)
                for sock in [s for s in self._unauthenticated if time.monotonic() >= self._due(s)]:
                    self._drop(sock)
                self._heartbeats.hear(ready)
                for number, how in self._heartbeats.look().items():
                    self._cut(number, how)
        finally:
            for sock in (*self._unauthenticated, *self._members, self._listener):
                sock.close()
            self._heartbeats.close()

    def _due(self, sock: socket.socket) -> float:
        """Return when an unauthenticated peer is dropped; sooner if it has sent nothing and other peers wait."""
        side, until = self._unauthenticated[sock]
        wanted = len(self._unauthenticated) == _UNAUTHENTICATED and not side.greeted
        return until - _HANDSHAKE + _SILENT if wanted else until

    def _cut(self, number: int, how: str) -> None:
        sock = next(sock for sock, one in self._members.items() if one == number)
        self._end(sock, how)

    def _end(self, sock: socket.socket, how: str) -> None:
        number = self._members.pop(sock)
        self._heartbeats.forget(number)
        self._poller.unregister(sock)
        sock.close()
        self._gone(number, how)

    def _serve_one(self, sock: socket.socket) -> None:
        if sock is self._listener:
            self._accept()
        elif sock in self._members:
            self._hear(sock)
        elif sock in self._unauthenticated:
            with contextlib.suppress(BlockingIOError):
                try:
                    self._meet(sock, self._unauthenticated[sock][0])
                except (AuthError, OSError) as error:
                    if isinstance(error, BlockingIOError):
                        raise
                    self._drop(sock)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # the peer has gone again, or there are too many open files
            return
        sock.setblocking(False)
        self._unauthenticated[sock] = auth.Acceptor(self._key, 0, 0), time.monotonic() + _HANDSHAKE
        self._poller.register(sock, zmq.POLLIN)
        if len(self._unauthenticated) == _UNAUTHENTICATED:
            self._poller.unregister(self._listener)

    def _meet(self, sock: socket.socket, side: auth.Acceptor) -> None:
        data = sock.recv(side.wanted)
        if not data:
            raise AuthError("it has hung up")
        side.feed(data)
        outgoing, side.outgoing = side.outgoing, b""
        if outgoing:  # a few bytes, which always fit into the empty send buffer
            sock.sendall(outgoing)
        if side.done:
            if side.place.purpose != _PURPOSE:
                raise AuthError("another purpose")
            tcp_options.set_keepalive(sock, self._silence, control=True)
            self._forget_unauthenticated(sock)
            self._members[sock] = number = side.place.source - 1
            self._heartbeats.begin(number)

    def _hear(self, sock: socket.socket) -> None:
        try:
            said = sock.recv(1)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            self._end(sock, "")

    def _drop(self, sock: socket.socket) -> None:
        self._forget_unauthenticated(sock)
        self._poller.unregister(sock)
        sock.close()

    def _forget_unauthenticated(self, sock: socket.socket) -> None:
        if len(self._unauthenticated) == _UNAUTHENTICATED:
            self._poller.register(self._listener, zmq.POLLIN)
        del self._unauthenticated[sock]


@dataclass(frozen=True)
class LivenessAddress:
    """Address of the driver, its ports for the connection and for heartbeats, and the maximum silence in seconds."""

    host: str
    liveness_port: int
    heartbeat_port: int
    silence: float


class LivenessConnection:
    """Worker's end of the connection, with a thread that watches it until `close`.

    The thread ends this process when the driver closes the connection, or when a process of ``others`` (pids and their
    descriptions) ends.
    """

    def __init__(
        self, where: LivenessAddress, job_key: bytes, number: int, others: Mapping[int, str], seconds: float
    ) -> None:
        """Connect and start the thread. Raises OSError or AuthError when that fails within ``seconds``."""
        seconds = min(seconds, LONGEST)
        self._sock = socket.create_connection((where.host, where.liveness_port), seconds)
        try:
            auth.connect(self._sock, derive_key(job_key, _LABEL), auth.Place(_PURPOSE, 0, number + 1, 0), seconds)
            self._sock.settimeout(None)
            tcp_options.set_keepalive(self._sock, where.silence, control=True)
            self._heartbeats = HeartbeatClient(where.host, where.heartbeat_port, job_key, number)
        except BaseException:
            self._sock.close()
            raise
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closed = False
        self._pid = os.getpid()
        # A forked child must not keep the connection open after this process has ended.
        os.register_at_fork(after_in_child=self._sock.close)
        self._thread = threading.Thread(target=self._watch, args=(others,), name="horovod-line", daemon=True)
        self._thread.start()

    def _watch(self, others: Mapping[int, str]) -> None:
        watched = {self._stop: "", self._sock.fileno(): "the driver has ended, or considers this worker lost"}
        with contextlib.ExitStack() as at_end, selectors.DefaultSelector() as selector:
            for pid, what in others.items():
                try:
                    fd = os.pidfd_open(pid)
                except OSError:  # it has already ended, or the kernel does not support this
                    continue
                at_end.callback(os.close, fd)
                watched[fd] = f"{what} is gone"
            for fd in watched:
                selector.register(fd, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    what = watched[key.fd]
                    if key.fd == self._stop:
                        return
                    if key.fd != self._sock.fileno() or self._is_closed():
                        print(f"horovod: this worker ends: {what}", file=sys.stderr, flush=True)
                        os._exit(1)

    def _is_closed(self) -> bool:
        try:
            return not self._sock.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Leave the job; this process continues. Idempotent.

        Does nothing in a forked child, whose copy of the connection is closed and whose watch runs in its parent.
        """
        if not self._closed and os.getpid() == self._pid:
            self._closed = True
            self._heartbeats.close()
            os.eventfd_write(self._stop, 1)
            self._thread.join(_CLOSE)
            self._sock.close()
            os.close(self._stop)
