"""Listening sockets of the store, and of the hand-over of its key, that stop accepting before strangers have used up
the process's descriptors.

ZeroMQ accepts whoever connects, and gives each some seconds to prove that it belongs to the job. It knows no limit to
their number, and a process without descriptors fails in strange places. Taking its listening socket away would also end
the connections that came through it, those of members included. So the socket is ours, ZeroMQ borrows it, and while few
descriptors are left a filter (BPF, "drop everything") lets the kernel ignore who knocks: to a member that is a packet
lost, sent again a second later, when strangers may have been dropped.

ZeroMQ accepts in a thread of its own, so a sudden flood can be some connections ahead of this; hence the generous rest.
"""

import ctypes
import fcntl
import math
import os
import resource
import socket
import struct
import time
from collections.abc import Sequence

import zmq
from zmq.utils.monitor import recv_monitor_message

_BACKLOG = 128
_RECOUNT_SECONDS = 0.25
_MOST = 65536  # descriptors: what strangers can make the store keep in memory grows with their number
_KEPT = 8  # a part of this many of all descriptors is kept for others
_TRUSTED = 32  # so many connections, as a part of all descriptors, are let in before they are counted again
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27  # <asm-generic/socket.h>


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
        reason = f"accepted is an address of this machine: {error.strerror or error}"
        raise ValueError(f"host is {host!r}, {reason}") from None
    return listener


def descriptors_for(members: int) -> int:
    """How many a process needs to be able to open so that this many connections of members get through its door."""
    return -(-members * _KEPT // (_KEPT - 1)) + _KEPT * _KEPT


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
        self.monitor = sock.get_monitor_socket(zmq.EVENT_ACCEPTED)
        self.closed = False
        self._count()

    def check(self) -> None:
        """Closes or opens the door according to the descriptors in use."""
        while self.monitor.poll(0):
            recv_monitor_message(self.monitor)
            self._used += 1
        if time.monotonic() < self._recount_at if self.closed else self._used < self._recount_above:
            return
        self._count()
        if self.closed and self._used < self._limit - self._limit // 8:
            for listener in self._listeners:
                listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
            self.closed = False
        elif not self.closed and self._used >= self._limit:
            for listener in self._listeners:
                listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, _drop_everything())
            self.closed = True

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
