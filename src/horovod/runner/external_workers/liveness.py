"""Liveness connections and heartbeats between the driver and external workers."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import zmq

from horovod.common.network import connecting
from horovod.common.security import auth
from horovod.common.security.auth import AuthError, derive_key
from horovod.common.store.messages import curve_pair
from horovod.common.store.sockets import AcceptControl, ClientAuthenticator, ThreadedServer, dial, server_socket
from horovod.runner.external_workers.mailbox import LONGEST
from horovod.runner.remote.heartbeats import Heartbeats, silent

# A liveness connection breaks when a process exits. A suspended process, or a process on a host that hangs, keeps its
# connection. The driver therefore also sends heartbeat requests to each worker, and considers a worker lost if it does
# not answer for too long. A ZeroMQ proxy echoes each request without running Python code, so a program can hold the
# interpreter lock for any time without being considered lost.

# Name of a worker's ZeroMQ socket. The number alone could begin with a zero byte, which ZeroMQ reserves.
_NAME = struct.Struct("!cI")
_MARK = b"w"
# Maximum size of a message in bytes, including the messages of the handshake
_LONGEST = 1024
_QUEUED = 4  # Maximum number of unanswered heartbeat requests to a worker


def no_heartbeat_error(seconds: float) -> str:
    """Return the error message for a worker whose heartbeat connection did not arrive within `seconds`.

    The worker itself may be healthy.
    """
    why = "the network lets only some of the driver's ports through, or the driver may open no more files (ulimit -n)"
    return f"its connection for signs of life has not come in {seconds:.0f} s, though another has: {why}"


class HeartbeatServer:
    """Driver side of the heartbeat protocol, for use in a single thread.

    The caller polls ``sources`` until ``next_time`` at the latest, and then calls ``receive`` and ``look``. Between
    ``begin`` and ``forget``, the server requests heartbeats from a worker.
    """

    def __init__(self, listener: socket.socket, job_key: bytes, silence: float) -> None:
        """Start listening for heartbeat connections.

        Args:
            listener: Listening socket, which ``close`` closes.
            job_key: The job's secret key.
            silence: Seconds without an answer after which a worker is considered lost.
        """
        # Time (monotonic, s) of each worker's last answer, or of the call of `begin` before the first answer.
        self._last_heard: dict[int, float] = {}
        self._connected: set[int] = set()  # Numbers of the workers that have connected.
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        try:
            self._authenticator = ClientAuthenticator(self._context, job_key)
            self._socket = server_socket(self._context, job_key, _LONGEST, _QUEUED)
            # A new connection with a worker's name replaces its old one. Sending to an absent worker raises an error.
            self._socket.router_handover = True
            self._socket.router_mandatory = True
            self._accepts = AcceptControl(self._socket, [listener])
        except BaseException:
            self._context.destroy(linger=0)
            listener.close()
            raise
        self._silence = silence
        self._beats = Heartbeats(silence, time.monotonic())
        self.sources = (self._authenticator.socket, self._socket, self._accepts.monitor)

    def begin(self, number: int) -> None:
        """Start requesting heartbeats from the given worker."""
        self._last_heard[number] = time.monotonic()
        self._connected.discard(number)

    def forget(self, number: int) -> None:
        """Stop requesting heartbeats from this worker."""
        self._last_heard.pop(number, None)
        self._connected.discard(number)

    def next_time(self) -> float:
        """Return the latest time (monotonic, s) at which the caller must call `look`, or infinity."""
        times = [time.monotonic() + self._accepts.seconds_left()]
        if self._last_heard:
            times += [self._beats.next_heartbeat, min(self._last_heard.values()) + self._silence]
        return min(times)

    def receive(self, ready: Collection[object]) -> None:
        """Receive heartbeat answers.

        ``ready`` contains the readable sources; objects that are not sources are ignored.
        """
        self._accepts.check()
        if self._authenticator.socket in ready:
            self._authenticator.reply()
        if self._socket in ready:
            name = self._socket.recv_multipart()[0]
            if len(name) == _NAME.size and (number := _NAME.unpack(name)[1]) in self._last_heard:
                self._last_heard[number] = time.monotonic()
                self._connected.add(number)

    def look(self) -> Mapping[int, str]:
        """Request heartbeats if they are due, and check for silent workers.

        Returns:
            Newly lost workers, with the reasons. They receive no further heartbeat requests.
        """
        now = time.monotonic()
        # If this process itself was suspended, do not blame the workers for the silence.
        if self._beats.was_deaf(now, True):
            self._last_heard = dict.fromkeys(self._last_heard, now)
        if self._last_heard and self._beats.is_due(now):
            for number in self._last_heard:
                self._ask(number)
        lost = {}
        for number, seconds in self._beats.lost(now, self._last_heard).items():
            lost[number] = silent(seconds) if number in self._connected else no_heartbeat_error(seconds)
            self.forget(number)
        return lost

    def _ask(self, number: int) -> None:
        try:
            self._socket.send_multipart([_NAME.pack(_MARK, number), b""], zmq.NOBLOCK)
        except zmq.Again:  # The queue of requests to this worker is full, because the worker is not reading them.
            pass
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return
        self._connected.add(number)

    def close(self) -> None:
        """Close all sockets, so that other programs can use the port."""
        self._accepts.close()
        self._context.destroy(linger=0)


class HeartbeatClient:
    """Worker side of the heartbeat protocol. Threads answer requests until ``close`` is called."""

    def __init__(self, host: str, port: int, job_key: bytes, number: int) -> None:
        """Start connecting to the driver in the background."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        server, _ = curve_pair(job_key, "server")
        name = _NAME.pack(_MARK, number)
        self._socket = dial(self._context, host, port, curve_pair(job_key, "client"), server, _LONGEST, name)
        self._thread = threading.Thread(target=self._reply, name="horovod-heartbeats", daemon=True)
        self._thread.start()

    def _reply(self) -> None:
        try:
            zmq.proxy(self._socket, self._socket)
        except zmq.ContextTerminated:
            pass
        finally:
            self._socket.close()

    def close(self) -> None:
        """Stop answering heartbeat requests. The process itself continues."""
        # Call term() in a separate thread, because it blocks until the thread that answers has closed its socket.
        ending = threading.Thread(target=self._context.term, name="horovod-heartbeats-end", daemon=True)
        ending.start()
        until = time.monotonic() + _CLOSE
        for thread in (ending, self._thread):
            thread.join(max(0.0, until - time.monotonic()))


# No data is sent over a liveness connection. When the process at either end dies, the kernel closes the connection, so
# the other end notices immediately. A cluster manager can take ten seconds or more to notice the loss of a machine, and
# can leave processes running when a part of it dies.

_LABEL = "lifeline"
_PURPOSE = 127
# Seconds within which a peer must authenticate
_HANDSHAKE = 5.0
# Seconds within which a peer must send its first bytes if other peers are waiting
_SILENT = 1.0
_UNAUTHENTICATED = 64  # Maximum number of unauthenticated connections. Other connections wait in the listen backlog.
_CLOSE = 5.0


class LivenessServer(ThreadedServer):
    """Driver side of all liveness connections. A thread serves them until `close` is called.

    When a worker's connection closes or breaks, the thread calls ``on_exit`` with its number and an empty string.
    If a worker is silent, the string describes the silence. The thread then closes the connection, so that the worker
    exits if it continues.
    """

    def __init__(
        self,
        listener: socket.socket,
        heartbeats: socket.socket,
        job_key: bytes,
        silence: float,
        on_exit: Callable[[int, str], None],
    ) -> None:
        """Start the thread that serves the connections.

        Args:
            listener: Listening socket for liveness connections, which ``close`` closes.
            heartbeats: Listening socket for heartbeat connections, which ``close`` closes.
            job_key: The job's secret key.
            silence: Seconds without an answer after which a worker or its host is considered lost.
            on_exit: Function to call when a worker is lost.
        """
        super().__init__("horovod-lines", _CLOSE)
        self._listener = listener
        self._key = derive_key(job_key, _LABEL)
        self._silence = silence
        self._on_exit = on_exit
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
        """Number of connected workers. Thread-safe."""
        return len(self._members)

    def _serve(self) -> None:
        self._listener.setblocking(False)
        for source in (self._listener, self._stop, *self._heartbeats.sources):
            self._poller.register(source, zmq.POLLIN)
        try:
            while True:
                until = min([self._heartbeats.next_time(), *map(self._deadline, self._unauthenticated)])
                left = min(max(0.0, until - time.monotonic()), LONGEST)
                ready = dict(self._poller.poll(math.ceil(1000 * left)))
                if self._stop in ready:
                    return
                for sock in [
                    s for s in (self._listener, *self._unauthenticated, *self._members) if s.fileno() in ready
                ]:
                    self._serve_one(sock)
                for sock in [s for s in self._unauthenticated if time.monotonic() >= self._deadline(s)]:
                    self._drop(sock)
                self._heartbeats.receive(ready)
                for number, how in self._heartbeats.look().items():
                    self._cut(number, how)
        finally:
            for sock in (*self._unauthenticated, *self._members, self._listener):
                sock.close()
            self._heartbeats.close()

    def _deadline(self, sock: socket.socket) -> float:
        """Return the time at which an unauthenticated peer is disconnected.

        A silent peer is disconnected earlier if other peers are waiting.
        """
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
        self._on_exit(number, how)

    def _serve_one(self, sock: socket.socket) -> None:
        if sock is self._listener:
            self._accept()
        elif sock in self._members:
            self._receive(sock)
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
        except OSError:  # The peer has already disconnected, or this process has too many open files.
            return
        sock.setblocking(False)
        self._unauthenticated[sock] = auth.Acceptor(self._key, 0, 0), time.monotonic() + _HANDSHAKE
        self._poller.register(sock, zmq.POLLIN)
        if len(self._unauthenticated) == _UNAUTHENTICATED:
            self._poller.unregister(self._listener)

    def _meet(self, sock: socket.socket, side: auth.Acceptor) -> None:
        data = sock.recv(side.bytes_wanted)
        if not data:
            raise AuthError("it has hung up")
        side.feed(data)
        outgoing, side.outgoing = side.outgoing, b""
        if outgoing:  # `sendall` cannot block here, because a few bytes always fit into the empty send buffer.
            sock.sendall(outgoing)
        if side.complete:
            if side.place.purpose != _PURPOSE:
                raise AuthError("another purpose")
            connecting.set_keepalive(sock, self._silence, control=True)
            self._forget_unauthenticated(sock)
            self._members[sock] = number = side.place.source - 1
            self._heartbeats.begin(number)

    def _receive(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(1)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
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
    """Addresses of the driver for liveness connections and heartbeats.

    Attributes:
        host: Host name or address of the driver.
        liveness_port: Port for liveness connections.
        heartbeat_port: Port for heartbeats.
        silence: Seconds without an answer after which a worker is considered lost.
    """

    host: str
    liveness_port: int
    heartbeat_port: int
    silence: float


class LivenessConnection:
    """Worker side of the liveness connection. A thread watches it until `close` is called.

    The thread terminates this process when the driver closes the connection, or when one of the processes in ``others``
    exits. `others` maps pids to descriptions.
    """

    def __init__(
        self, where: LivenessAddress, job_key: bytes, number: int, peers: Mapping[int, str], seconds: float
    ) -> None:
        """Connect to the driver and start the thread.

        Raises OSError or AuthError if this takes more than ``seconds``.
        """
        seconds = min(seconds, LONGEST)
        self._sock = socket.create_connection((where.host, where.liveness_port), seconds)
        try:
            auth.connect(self._sock, derive_key(job_key, _LABEL), auth.Place(_PURPOSE, 0, number + 1, 0), seconds)
            self._sock.settimeout(None)
            connecting.set_keepalive(self._sock, where.silence, control=True)
            self._heartbeats = HeartbeatClient(where.host, where.heartbeat_port, job_key, number)
        except BaseException:
            self._sock.close()
            raise
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closed = False
        self._pid = os.getpid()
        # A forked child must not keep the connection open after this process has exited.
        os.register_at_fork(after_in_child=self._sock.close)
        self._thread = threading.Thread(target=self._watch, args=(peers,), name="horovod-line", daemon=True)
        self._thread.start()

    def _watch(self, peers: Mapping[int, str]) -> None:
        watched = {self._stop: "", self._sock.fileno(): "the driver has ended, or considers this worker lost"}
        with contextlib.ExitStack() as at_end, selectors.DefaultSelector() as selector:
            for pid, what in peers.items():
                try:
                    fd = os.pidfd_open(pid)
                except OSError:  # The process has already exited, or the kernel does not support pidfd_open.
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
        """Leave the job without ending this process. Can be called repeatedly.

        In a forked child, the method does nothing: the child's copy of the connection is already closed, and the thread
        runs only in the parent.
        """
        if not self._closed and os.getpid() == self._pid:
            self._closed = True
            self._heartbeats.close()
            os.eventfd_write(self._stop, 1)
            self._thread.join(_CLOSE)
            self._sock.close()
            os.close(self._stop)
