"""Listening sockets that stop accepting when there are too many unauthenticated connections or too few descriptors.

The store and the key exchange use them. ZeroMQ accepts every connection and gives each some seconds to prove that it
belongs to the job. It has no limit on their number, and a process without free descriptors fails in unexpected places.
Closing ZeroMQ's listening socket would also close the connections made through it, including those of members. So the
socket is ours and ZeroMQ borrows it. While there are too many connections, a filter (BPF, "drop everything") makes the
kernel ignore new ones. A member sees a lost packet, which is sent again a second later, when unauthenticated
connections may have been dropped.

Each unauthenticated connection can make the process hold one incomplete frame (``MAX_FRAME_BYTES``) and ZeroMQ's own
buffers, about 30 KB in all.

ZeroMQ accepts in its own thread, so a sudden flood may be some connections ahead of the checks here; hence the large
reserve.
"""

import ctypes
import fcntl
import itertools
import math
import os
import resource
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence

import zmq
from zmq.utils.monitor import recv_monitor_message

HANDSHAKE_SECONDS = 5.0
"""Time that ZeroMQ gives a connection to authenticate; the user of a Door must set it as ``handshake_ivl``."""
_SLACK = 1.0  # seconds until ZeroMQ reports a failed handshake
_STRANGERS = 1024  # maximum number of unauthenticated connections
_BACKLOG = 128
_RECOUNT_SECONDS = 0.25
_MOST = 65536  # maximum number of descriptors to use
_KEPT = 8  # 1 / _KEPT of all descriptors are reserved for other uses
_AT_ONCE = 16  # events read per check; in a flood they arrive as fast as they are read
_TRUSTED = 32  # 1 / _TRUSTED of all descriptors may be used before they are counted again
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27  # <asm-generic/socket.h>


LOOPBACK = "127.0.0.1"


def listen(host: str) -> socket.socket:
    """Listen on ``host``, on a port chosen by the system. Raises ValueError if it is not an address of this machine."""
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
    """Return the descriptor limit with which this many connections of members are accepted."""
    return -(-members * _KEPT // (_KEPT - 1)) + _KEPT * _KEPT


_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class Strangers:
    """Estimate of the number of unauthenticated connections from ZeroMQ's events. Pure.

    A success event does not name its connection. A connection that still exists after the handshake timeout has
    succeeded, so errors do not accumulate.
    """

    def __init__(self) -> None:
        self._accepted: dict[int, float] = {}  # time of accept by descriptor; only the last seconds, in this order
        self._succeeded: deque[float] = deque()

    def take(self, event: int, descriptor: int, now: float) -> None:
        """Record an event. ``descriptor``: that of the connection, if the event has one."""
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


class Door:
    """Control over a ZeroMQ socket's listeners, for one thread.

    Poll ``monitor``, and call ``check`` when it is readable or ``seconds_left`` have passed.
    """

    def __init__(self, sock: "zmq.Socket[bytes]", listeners: Sequence[socket.socket]) -> None:
        """Make ``sock`` accept on these listeners, which this object owns from now on."""
        self._sock = sock
        self._listeners = listeners
        for listener in listeners:
            host, port = listener.getsockname()[:2]
            sock.ipv6 = ":" in host
            sock.setsockopt(zmq.USE_FD, fcntl.fcntl(listener, fcntl.F_DUPFD_CLOEXEC, 0))  # ZeroMQ closes the duplicate
            sock.bind(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
        self.monitor = sock.get_monitor_socket(_EVENTS)
        self.closed = False
        self._strangers = Strangers()
        self._recount_at = 0.0
        self._count()

    def check(self) -> None:
        """Stop or resume accepting, depending on unauthenticated connections and used descriptors."""
        now = time.monotonic()
        for _ in range(_AT_ONCE):
            if not self.monitor.poll(0):
                break
            event = recv_monitor_message(self.monitor)
            self._strangers.take(event["event"], event["value"], now)
            self._used += event["event"] == zmq.EVENT_ACCEPTED
        strangers = self._strangers.count(now)
        if self.closed:
            if now < self._recount_at:
                return
            self._count()
            if self._used < self._limit - self._limit // 8 and strangers < _STRANGERS - _STRANGERS // 8:
                for listener in self._listeners:
                    listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
                self.closed = False
            return
        if self._used >= self._recount_above:
            self._count()
        if self._used >= self._limit or strangers >= _STRANGERS:
            for listener in self._listeners:
                listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, _drop_everything())
            self.closed = True
            self._recount_at = now + _RECOUNT_SECONDS

    def seconds_left(self) -> float:
        """Return the seconds until ``check`` must be called; infinity to wait for the monitor only."""
        return max(0.0, self._recount_at - time.monotonic()) if self.closed else math.inf

    def close(self) -> None:
        """Stop accepting and free the port."""
        self._sock.disable_monitor()
        self.monitor.close(linger=0)
        for listener in self._listeners:
            listener.close()

    def _count(self) -> None:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = _MOST if most == resource.RLIM_INFINITY else min(most, _MOST)
        self._limit = most - most // _KEPT
        # Upper bound of used descriptors; each later connection is added.
        try:
            self._used = len(os.listdir("/proc/self/fd"))
        except OSError:  # no descriptor is left to read the directory
            self._used = most
        # This process may have another Door, which also accepts connections.
        self._recount_above = min(self._limit, self._used + most // _TRUSTED)
        self._recount_at = time.monotonic() + _RECOUNT_SECONDS


# struct sock_filter of one instruction, "return 0": pass no byte of any packet (linux/filter.h).
_RETURN_NOTHING = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))


def _drop_everything() -> bytes:
    return struct.pack("HP", 1, ctypes.addressof(_RETURN_NOTHING))
