"""Signs of life of workers. A line that breaks tells that a process has ended; one that is stopped, or whose host
hangs, keeps its line. So the driver asks each worker again and again, and who is silent for too long is lost.

A worker answers without Python: ZeroMQ's proxy, from a socket to itself, sends back what comes. A program may hold the
interpreter's lock for as long as it likes (a large sort, a C library's call), and is none the worse for it.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Collection, Mapping

import zmq

from horovod.common.store.dial import dial
from horovod.common.store.door import Door
from horovod.common.store.gate import Gate, serving
from horovod.common.store.messages import curve_pair
from horovod.runner.reach.heartbeats import Heartbeats

_NAME = struct.Struct("!cI")  # of a worker's socket; ZeroMQ keeps names that begin with 0 to itself
_MARK = b"w"
_LONGEST = 1024  # bytes of a message that is accepted; those of the handshake count too
_QUEUED = 4  # questions that wait for a worker that stands still
_CLOSE = 5.0  # s


class Asking:
    """The driver's side, used by one thread: to be polled are ``sources``, and then ``hear``, ``look`` called, at
    ``next_time`` at the latest. Asks all that ``heard`` has: when each was heard last, by number (monotonic, s)."""

    def __init__(self, listener: socket.socket, job_key: bytes, silence: float) -> None:
        """``listener``: a listening socket, which then belongs to it. ``silence``: s without an answer after which a
        worker is lost."""
        self.heard: dict[int, float] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._gate = Gate(self._context, job_key)
        self._socket = serving(self._context, job_key, _LONGEST, _QUEUED)
        self._socket.router_handover = True  # one that has to connect anew has its name still
        self._door = Door(self._socket, [listener])
        self._silence = silence
        self._beats = Heartbeats(silence, time.monotonic())
        self.sources = (self._gate.socket, self._socket, self._door.monitor)

    def next_time(self) -> float:
        """Monotonic, s; infinity: nothing is to be done before something comes."""
        times = [time.monotonic() + self._door.seconds_left()]
        if self.heard:
            times += [self._beats.next_word, min(self.heard.values()) + self._silence]
        return min(times)

    def hear(self, ready: Collection[object]) -> None:
        """``ready``: what is, of the ``sources`` and of others."""
        self._door.check()
        if self._gate.socket in ready:
            self._gate.answer()
        if self._socket in ready:
            name = self._socket.recv_multipart()[0]
            if len(name) == _NAME.size and (number := _NAME.unpack(name)[1]) in self.heard:
                self.heard[number] = time.monotonic()

    def look(self) -> Mapping[int, float]:
        """Asks when it is time to; returns who is lost, and for how long (s) each has been silent. They are not asked
        any more."""
        now = time.monotonic()
        if self._beats.was_deaf(now, True):  # this process stood still itself, which makes nobody late
            self.heard = dict.fromkeys(self.heard, now)
        if self.heard and self._beats.is_due(now):
            for number in self.heard:
                self._socket.send_multipart([_NAME.pack(_MARK, number), b""])  # dropped for who has not come yet
        lost = self._beats.lost(now, self.heard)
        for number in lost:
            del self.heard[number]
        return lost

    def close(self) -> None:
        """Frees the port."""
        self._door.close()
        self._context.destroy(linger=0)


class Answering:
    """A worker's side, until ``close``: threads of its own."""

    def __init__(self, host: str, port: int, job_key: bytes, number: int) -> None:
        """Connects in the background."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        server, _ = curve_pair(job_key, "server")
        name = _NAME.pack(_MARK, number)
        self._socket = dial(self._context, host, port, curve_pair(job_key, "client"), server, _LONGEST, name)
        self._thread = threading.Thread(target=self._answer, name="horovod-pulse", daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        try:
            zmq.proxy(self._socket, self._socket)
        except zmq.ContextTerminated:
            pass
        finally:
            self._socket.close()

    def close(self) -> None:
        """The process goes on without."""
        self._context.term()  # which waits for the thread to close its socket
        self._thread.join(_CLOSE)
