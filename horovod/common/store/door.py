"""Listening sockets of the store, and of the hand-over of its key, that stop accepting when strangers are many, or have
used up most of the process's descriptors.

ZeroMQ accepts whoever connects, and gives each some seconds to prove that it belongs to the job. It knows no limit to
their number, and a process without descriptors fails in strange places. Taking its listening socket away would also end
the connections that came through it, those of members included. So the socket is ours, ZeroMQ borrows it, and while too
many are inside, a filter (BPF, "drop everything") lets the kernel ignore who knocks: to a member that is a packet lost,
sent again a second later, when strangers may have been dropped.

What a stranger makes the process hold is a frame that lacks a byte (``MAX_FRAME_BYTES``) and ZeroMQ's own buffers, some
30 KB in all.

ZeroMQ accepts in a thread of its own, so a sudden flood can be some connections ahead of this; hence the generous rest.
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
"""What ZeroMQ gives each to prove itself: its option ``handshake_ivl``, which the user of a door has to set."""
_SLACK = 1.0  # s until it has told that somebody did not
_STRANGERS = 1024  # connections that have not proven to be a member's, at a time
_BACKLOG = 128
_RECOUNT_SECONDS = 0.25
_MOST = 65536  # descriptors
_KEPT = 8  # a part of this many of all descriptors is kept for others
_AT_ONCE = 16  # events that are read before the door is looked at: in a flood they come as fast as they are read
_TRUSTED = 32  # so many connections, as a part of all descriptors, are let in before they are counted again
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27  # <asm-generic/socket.h>


LOOPBACK = "127.0.0.1"


def listen(host: str) -> socket.socket:
    """Listens on ``host``, at a port that the system chooses. Raises ValueError when that is not an address of this
    machine.
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
        reason = f"accepted is an address of this machine: {error.strerror or error}"
        raise ValueError(f"host is {host!r}, {reason}") from None
    return listener


def descriptors_for(members: int) -> int:
    """How many a process needs to be able to open so that this many connections of members get through its door."""
    return -(-members * _KEPT // (_KEPT - 1)) + _KEPT * _KEPT


_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class Strangers:
    """How many connections have not proven to be a member's, from what ZeroMQ tells: a success does not say whose it
    is. Who is still there after the time for handshakes has succeeded, so errors do not add up. Pure."""

    def __init__(self) -> None:
        self._accepted: dict[int, float] = {}  # when, by descriptor; those of the last seconds, in this order
        self._succeeded: deque[float] = deque()

    def take(self, event: int, descriptor: int, now: float) -> None:
        """``descriptor``: of the connection, where the event tells."""
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._succeeded.append(now)
            return
        self._accepted.pop(descriptor, None)
        if event == zmq.EVENT_ACCEPTED:
            self._accepted[descriptor] = now

    def count(self, now: float) -> int:
        begin = now - HANDSHAKE_SECONDS - _SLACK
        while self._succeeded and self._succeeded[0] < begin:
            self._succeeded.popleft()
        old = itertools.takewhile(lambda descriptor: self._accepted[descriptor] < begin, self._accepted)
        for descriptor in list(old):
            del self._accepted[descriptor]
        return max(0, len(self._accepted) - len(self._succeeded))


class Door:
    """Used by one thread; ``monitor`` is to be polled, and ``check`` called when it has something, and in time."""

    def __init__(self, sock: "zmq.Socket[bytes]", listeners: Sequence[socket.socket]) -> None:
        """``sock`` accepts at these, which belong to the door from now on."""
        self._sock = sock
        self._listeners = listeners
        for listener in listeners:
            host, port = listener.getsockname()[:2]
            sock.ipv6 = ":" in host
            sock.setsockopt(zmq.USE_FD, fcntl.fcntl(listener, fcntl.F_DUPFD_CLOEXEC, 0))  # which ZeroMQ closes
            sock.bind(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
        self.monitor = sock.get_monitor_socket(_EVENTS)
        self.closed = False
        self._strangers = Strangers()
        self._recount_at = 0.0
        self._count()

    def check(self) -> None:
        """Closes or opens the door according to the strangers that are inside and the descriptors in use."""
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
        """Until ``check`` has to be called at the latest; infinity: not before the monitor has something."""
        return max(0.0, self._recount_at - time.monotonic()) if self.closed else math.inf

    def close(self) -> None:
        """Frees the port."""
        self._sock.disable_monitor()
        self.monitor.close(linger=0)
        for listener in self._listeners:
            listener.close()

    def _count(self) -> None:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = _MOST if most == resource.RLIM_INFINITY else min(most, _MOST)
        self._limit = most - most // _KEPT
        # Descriptors in use, at most: each connection from now on is added.
        try:
            self._used = len(os.listdir("/proc/self/fd"))
        except OSError:  # there is not even one left to look
            self._used = most
        # This process may have another door, where strangers come in too.
        self._recount_above = min(self._limit, self._used + most // _TRUSTED)
        self._recount_at = time.monotonic() + _RECOUNT_SECONDS


# struct sock_filter of one instruction, "return 0": of every packet, no byte gets through (linux/filter.h).
_RETURN_NOTHING = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))


def _drop_everything() -> bytes:
    return struct.pack("HP", 1, ctypes.addressof(_RETURN_NOTHING))
