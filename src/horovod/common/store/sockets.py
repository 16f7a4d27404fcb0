"""ZeroMQ sockets of the store and the key exchange: limits on connections, authenticated servers, and clients.

ZeroMQ accepts every connection, and a peer then has a few seconds to prove that it belongs to the job. ZeroMQ does not
limit the number of connections, and a process without free descriptors fails in unexpected places. So ``AcceptControl``
stops accepting if there are too many unauthenticated connections or too few free descriptors. Closing ZeroMQ's
listening socket would also close the connections made through it, including those of members. So this module owns the
listening socket and lends it to ZeroMQ. While there are too many connections, a filter (BPF, "drop everything") makes
the kernel ignore new ones. To a member of the job, this looks like a lost packet. The member's kernel sends the packet
again a second later. By then, unauthenticated connections might have been dropped.

Each unauthenticated connection can make the process hold one incomplete frame (``MAX_FRAME_BYTES``) and ZeroMQ's own
buffers, about 30 KB in all. ZeroMQ accepts connections in its own thread, so it can accept some connections of a sudden
flood before this module stops it. For this reason, the reserve of descriptors is large.
"""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import math
import os
import resource
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from horovod.common.store.messages import curve_pair

HANDSHAKE_SECONDS = 5.0
"""Seconds that a connection has to authenticate. Users of ``AcceptControl`` must set it as ``handshake_ivl``."""
# Additional seconds until ZeroMQ reports a failed handshake.
_SLACK = 1.0
# Maximum number of unauthenticated connections.
_STRANGERS = 1024
_BACKLOG = 128
_RECOUNT_SECONDS = 0.25
# Maximum number of file descriptors that this process may use.
_MAX_DESCRIPTORS = 65536
# Reserve one in _KEPT file descriptors for uses other than connections.
_RESERVED = 8
# Maximum number of events to process per check, so that a flood of events cannot block the thread.
_AT_ONCE = 16
# Recount the open descriptors after at most (open-file limit / _TRUSTED) accepted connections.
_TRUSTED = 32
# Socket options that Python does not define (<asm-generic/socket.h>).
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27


LOOPBACK = "127.0.0.1"


def listen(host: str) -> socket.socket:
    """Listen on ``host``, on a port that the system chooses.

    Raises:
        ValueError: If the address belongs to another machine.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind((host, 0))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if host == LOOPBACK:
            raise ValueError(
                f"this machine's loopback interface has no address {LOOPBACK} ({error.strerror or error}), by which "
                f"processes of a job meet on it; `ip addr add {LOOPBACK}/8 dev lo`, as root, gives it one"
            ) from None
        raise ValueError(f"host must be an address of this machine, got {host!r}: {error.strerror or error}") from None
    return listener


def descriptors_for(members: int) -> int:
    """Return the open-file limit required for this many member connections."""
    return -(-members * _RESERVED // (_RESERVED - 1)) + _RESERVED * _RESERVED


_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class UnauthenticatedPeers:
    """Estimator of the number of unauthenticated connections, based on ZeroMQ socket events.

    A success event does not tell which connection it is about, so the number is an estimate. Errors in it do not
    accumulate: a connection that is older than the handshake timeout must have succeeded and is no longer counted.
    """

    def __init__(self) -> None:
        # Times at which recent connections were accepted, by descriptor, oldest first.
        self._accepted: dict[int, float] = {}
        self._succeeded: deque[float] = deque()

    def take(self, event: int, descriptor: int, now: float) -> None:
        """Record an event, with the descriptor of its connection if the event contains one."""
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._succeeded.append(now)
            return
        self._accepted.pop(descriptor, None)
        if event == zmq.EVENT_ACCEPTED:
            self._accepted[descriptor] = now

    def count(self, now: float) -> int:
        """Return the estimated number of unauthenticated connections."""
        begin = now - HANDSHAKE_SECONDS - _SLACK
        while self._succeeded and self._succeeded[0] < begin:
            self._succeeded.popleft()
        old = itertools.takewhile(lambda descriptor: self._accepted[descriptor] < begin, self._accepted)
        for descriptor in list(old):
            del self._accepted[descriptor]
        return max(0, len(self._accepted) - len(self._succeeded))


class AcceptControl:
    """Limits the connections that a ZeroMQ socket accepts. Not thread-safe.

    The caller polls ``monitor``. It calls ``check`` when ``monitor`` is readable or after ``seconds_left`` seconds.
    """

    def __init__(self, sock: zmq.Socket[bytes], listeners: Sequence[socket.socket]) -> None:
        """Accept connections for ``sock`` on these listeners. This object takes ownership of the listeners."""
        self._sock = sock
        self._listeners = listeners
        for listener in listeners:
            host, port = listener.getsockname()[:2]
            sock.ipv6 = ":" in host
            # ZeroMQ closes this duplicate of the listener.
            sock.setsockopt(zmq.USE_FD, fcntl.fcntl(listener, fcntl.F_DUPFD_CLOEXEC, 0))
            sock.bind(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
        self.monitor = sock.get_monitor_socket(_EVENTS)
        self.closed = False
        self._unauthenticated = UnauthenticatedPeers()
        self._recount_at = 0.0
        self._count()

    def check(self) -> None:
        """Stop or resume accepting connections.

        The decision depends on the numbers of unauthenticated connections and of free descriptors.
        """
        now = time.monotonic()
        for _ in range(_AT_ONCE):
            if not self.monitor.poll(0):
                break
            event = recv_monitor_message(self.monitor)
            self._unauthenticated.take(event["event"], event["value"], now)
            self._used += event["event"] == zmq.EVENT_ACCEPTED
        unauthenticated = self._unauthenticated.count(now)
        if self.closed:
            if now < self._recount_at:
                return
            self._count()
            if self._used < self._limit - self._limit // 8 and unauthenticated < _STRANGERS - _STRANGERS // 8:
                for listener in self._listeners:
                    listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
                self.closed = False
            return
        if self._used >= self._recount_above:
            self._count()
        if self._used >= self._limit or unauthenticated >= _STRANGERS:
            for listener in self._listeners:
                listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, _drop_everything())
            self.closed = True
            self._recount_at = now + _RECOUNT_SECONDS

    def seconds_left(self) -> float:
        """Return the seconds until ``check`` must be called, or infinity if it depends only on ``monitor``."""
        return max(0.0, self._recount_at - time.monotonic()) if self.closed else math.inf

    def close(self) -> None:
        """Stop accepting connections and free the port."""
        self._sock.disable_monitor()
        self.monitor.close(linger=0)
        for listener in self._listeners:
            listener.close()

    def _count(self) -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        limit = _MAX_DESCRIPTORS if limit == resource.RLIM_INFINITY else min(limit, _MAX_DESCRIPTORS)
        self._limit = limit - limit // _RESERVED
        # For an upper bound on open descriptors, count them once, then add one for each accepted connection.
        try:
            self._used = len(os.listdir("/proc/self/fd"))
        except OSError:  # if no descriptor is free, the directory cannot be read, so assume that all are in use
            self._used = limit
        # Recount regularly, because another AcceptControl in this process can accept connections too.
        self._recount_above = min(self._limit, self._used + limit // _TRUSTED)
        self._recount_at = time.monotonic() + _RECOUNT_SECONDS


# Packet filter that drops all packets: a BPF program (linux/filter.h) with the single instruction "return 0"
_RETURN_NOTHING = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))


def _drop_everything() -> bytes:
    return struct.pack("HP", 1, ctypes.addressof(_RETURN_NOTHING))


CONNECT_MS = 4000
"""Timeout of a connection attempt.

Attempts fail while the server drops packets because of too many unauthenticated connections (``AcceptControl``). The
system itself would retry ever less often.
"""
_PAUSE_MS, _LONGEST_PAUSE_MS = 50, 1000


def dial(
    context: zmq.Context[zmq.Socket[bytes]],
    host: str,
    port: int,
    pair: tuple[bytes, bytes],
    server: bytes,
    longest: int,
    name: bytes = b"",
) -> zmq.Socket[bytes]:
    """Create a client socket that connects in the background and reconnects automatically.

    Args:
        context: ZeroMQ context.
        host: Address of the server.
        port: Port of the server.
        pair: CURVE keys of this side, (public, secret) in Z85.
        server: The server's public key in Z85.
        longest: Maximum size of a frame in bytes. The limit is needed because the server might be another program, and
            ZeroMQ checks sizes before keys.
        name: Identity with which the server recognizes this socket, even after a reconnect.

    Raises:
        ZMQError: If the address is invalid.
    """
    sock = context.socket(zmq.DEALER)
    sock.curve_publickey, sock.curve_secretkey = pair
    sock.curve_serverkey = server
    sock.maxmsgsize = longest
    sock.linger = 0
    sock.ipv6 = ":" in host
    sock.reconnect_ivl, sock.reconnect_ivl_max = _PAUSE_MS, _LONGEST_PAUSE_MS
    sock.connect_timeout = CONNECT_MS
    if name:
        sock.setsockopt(zmq.ROUTING_ID, name)
    sock.connect(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
    return sock


class ClientAuthenticator:
    """Authenticator for ZeroMQ servers (ZAP, RFC 27) that accepts only clients with the job's key."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], key: bytes) -> None:
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind("inproc://zeromq.zap.01")
        self._accepted = z85.decode(curve_pair(key, "client")[0])

    def reply(self) -> None:
        """Answer ZeroMQ's request to authenticate a client."""
        frames = self.socket.recv_multipart()
        request = frames[1] if len(frames) > 1 else b""
        mechanism, credentials = (frames[5], frames[6:]) if len(frames) > 5 else (b"", [])
        # Public keys need no constant-time comparison. The CURVE handshake proves that the client has the secret key.
        known = mechanism == b"CURVE" and credentials == [self._accepted]
        code, text = (b"200", b"OK") if known else (b"400", b"not a member of this job")
        self.socket.send_multipart([b"1.0", request, code, text, b"member" if known else b"", b""])


def server_socket(context: zmq.Context[zmq.Socket[bytes]], key: bytes, longest: int, queued: int) -> zmq.Socket[bytes]:
    """Create an unbound server socket that uses the authenticator of the same context.

    Args:
        context: ZeroMQ context.
        key: The job's key.
        longest: Maximum size of a frame in bytes, including CURVE's handshake.
        queued: Maximum number of queued messages per member and direction.
    """
    socket = context.socket(zmq.ROUTER)
    socket.curve_server = True
    socket.curve_publickey, socket.curve_secretkey = curve_pair(key, "server")
    socket.zap_domain = b"horovod"
    socket.maxmsgsize = longest
    socket.handshake_ivl = int(HANDSHAKE_SECONDS * 1000)
    socket.rcvhwm = socket.sndhwm = queued
    socket.linger = 0
    return socket


class ThreadedServer:
    """Base class of servers that run in their own thread, from ``_start`` until ``close``.

    A subclass implements ``_serve``, which must return when the descriptor ``_stop`` becomes readable.
    """

    def __init__(self, name: str, seconds: float) -> None:
        """Create the server's thread. The subclass starts it.

        Args:
            name: Name of the thread.
            seconds: Maximum seconds for which ``close`` waits for the thread to finish.
        """
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._seconds = seconds
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def _serve(self) -> None:
        raise NotImplementedError

    def _start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop the server and wait for its thread. Can be called repeatedly."""
        if self._closed:
            return
        self._closed = True
        os.eventfd_write(self._stop, 1)
        if self._thread.ident is not None:
            self._thread.join(timeout=self._seconds)
        if not self._thread.is_alive():  # if the thread is still running, it might use the descriptor
            os.close(self._stop)
