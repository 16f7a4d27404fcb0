"""Heartbeats of external workers.

A liveness connection breaks when a process ends, but a process that is stopped, or whose host hangs, keeps its
connection. So the driver polls each worker, and a worker that is silent for too long is lost.

A worker answers without Python: a ZeroMQ proxy from a socket to itself echoes each message. So a program may hold the
interpreter's lock for any time (a large sort, a call into a C library) without counting as lost.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Collection, Mapping

import zmq

from horovod.common.store.messages import curve_pair
from horovod.common.store.sockets import AcceptControl, ClientAuthenticator, dial, server_socket
from horovod.runner.remote.heartbeats import Heartbeats, silent

_NAME = struct.Struct("!cI")  # name of a worker's socket; ZeroMQ reserves names that begin with a zero byte
_MARK = b"w"
_LONGEST = 1024  # maximum bytes of an accepted message, including those of the handshake
_QUEUED = 4  # maximum unanswered requests queued for a worker
_CLOSE = 5.0  # s


def never_came(seconds: float) -> str:
    """Return the message about a worker whose heartbeat connection has not come within `seconds`.

    Such a worker may be healthy.
    """
    why = "the network lets only some of the driver's ports through, or the driver may open no more files (ulimit -n)"
    return f"its connection for signs of life has not come in {seconds:.0f} s, though another has: {why}"


class HeartbeatServer:
    """Driver's side of the heartbeats, used by one thread.

    Poll ``sources``, then call ``hear`` and ``look``, at ``next_time`` at the latest. Each worker is polled from
    ``begin`` until ``forget``.
    """

    def __init__(self, listener: socket.socket, job_key: bytes, silence: float) -> None:
        """Start to listen for heartbeat connections.

        Args:
            listener: Listening socket; owned by this object.
            job_key: Key of the job.
            silence: Seconds without an answer after which a worker is lost.
        """
        self._heard: dict[int, float] = {}  # when each worker was last heard from, or polling began (monotonic, s)
        self._come: set[int] = set()  # workers that have connected
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        try:
            self._gate = ClientAuthenticator(self._context, job_key)
            self._socket = server_socket(self._context, job_key, _LONGEST, _QUEUED)
            self._socket.router_handover = True  # a worker that reconnects keeps its name
            self._socket.router_mandatory = True  # sending to a worker that has not connected is an error
            self._door = AcceptControl(self._socket, [listener])
        except BaseException:
            self._context.destroy(linger=0)
            listener.close()
            raise
        self._silence = silence
        self._beats = Heartbeats(silence, time.monotonic())
        self.sources = (self._gate.socket, self._socket, self._door.monitor)

    def begin(self, number: int) -> None:
        """Poll this worker from now on."""
        self._heard[number] = time.monotonic()
        self._come.discard(number)

    def forget(self, number: int) -> None:
        """Do not poll this worker any more."""
        self._heard.pop(number, None)
        self._come.discard(number)

    def next_time(self) -> float:
        """Return when `look` must be called next (monotonic, s), infinity if no deadline is set."""
        times = [time.monotonic() + self._door.seconds_left()]
        if self._heard:
            times += [self._beats.next_word, min(self._heard.values()) + self._silence]
        return min(times)

    def hear(self, ready: Collection[object]) -> None:
        """Receive answers. ``ready`` contains the sources that are readable, and possibly other objects."""
        self._door.check()
        if self._gate.socket in ready:
            self._gate.answer()
        if self._socket in ready:
            name = self._socket.recv_multipart()[0]
            if len(name) == _NAME.size and (number := _NAME.unpack(name)[1]) in self._heard:
                self._heard[number] = time.monotonic()
                self._come.add(number)

    def look(self) -> Mapping[int, str]:
        """Poll the workers if due. Returns the lost workers, which are not polled any more, and the reasons."""
        now = time.monotonic()
        if self._beats.was_deaf(now, True):  # this process was stopped itself, so no worker is late
            self._heard = dict.fromkeys(self._heard, now)
        if self._heard and self._beats.is_due(now):
            for number in self._heard:
                self._ask(number)
        lost = {}
        for number, seconds in self._beats.lost(now, self._heard).items():
            lost[number] = silent(seconds) if number in self._come else never_came(seconds)
            self.forget(number)
        return lost

    def _ask(self, number: int) -> None:
        try:
            self._socket.send_multipart([_NAME.pack(_MARK, number), b""], zmq.NOBLOCK)
        except zmq.Again:  # its queue is full, because it does not read
            pass
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return
        self._come.add(number)

    def close(self) -> None:
        """Close all sockets, which frees the port."""
        self._door.close()
        self._context.destroy(linger=0)


class HeartbeatClient:
    """Worker's side of the heartbeats: threads that answer until ``close``."""

    def __init__(self, host: str, port: int, job_key: bytes, number: int) -> None:
        """Start to connect in the background."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        server, _ = curve_pair(job_key, "server")
        name = _NAME.pack(_MARK, number)
        self._socket = dial(self._context, host, port, curve_pair(job_key, "client"), server, _LONGEST, name)
        self._thread = threading.Thread(target=self._answer, name="horovod-heartbeats", daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        try:
            zmq.proxy(self._socket, self._socket)
        except zmq.ContextTerminated:
            pass
        finally:
            self._socket.close()

    def close(self) -> None:
        """Stop answering; the process continues."""
        # In a thread, because term() waits without limit until the other thread has closed its socket.
        ending = threading.Thread(target=self._context.term, name="horovod-heartbeats-end", daemon=True)
        ending.start()
        until = time.monotonic() + _CLOSE
        for thread in (ending, self._thread):
            thread.join(max(0.0, until - time.monotonic()))
