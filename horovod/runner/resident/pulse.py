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
from horovod.runner.reach.heartbeats import Heartbeats, silent

_NAME = struct.Struct("!cI")  # of a worker's socket; ZeroMQ keeps names that begin with 0 to itself
_MARK = b"w"
_LONGEST = 1024  # bytes of a message that is accepted; those of the handshake count too
_QUEUED = 4  # questions that wait for a worker that stands still
_CLOSE = 5.0  # s


def never_came(seconds: float) -> str:
    """What is said of a worker whose line is there and the connection for signs of life is not, after so many seconds:
    it may be in the best of health."""
    why = "the network lets only some of the driver's ports through, or the driver may open no more files (ulimit -n)"
    return f"its connection for signs of life has not come in {seconds:.0f} s, though another has: {why}"


class Asking:
    """The driver's side, used by one thread: to be polled are ``sources``, and then ``hear``, ``look`` called, at
    ``next_time`` at the latest. Asks each from ``begin`` until ``forget``."""

    def __init__(self, listener: socket.socket, job_key: bytes, silence: float) -> None:
        """``listener``: a listening socket, which then belongs to it. ``silence``: s without an answer after which a
        worker is lost."""
        self._heard: dict[int, float] = {}  # when each was heard last, or is asked since (monotonic, s)
        self._come: set[int] = set()  # whose connection has come
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        try:
            self._gate = Gate(self._context, job_key)
            self._socket = serving(self._context, job_key, _LONGEST, _QUEUED)
            self._socket.router_handover = True  # one that has to connect anew has its name still
            self._socket.router_mandatory = True  # it tells of who has not come
            self._door = Door(self._socket, [listener])
        except BaseException:
            self._context.destroy(linger=0)
            listener.close()
            raise
        self._silence = silence
        self._beats = Heartbeats(silence, time.monotonic())
        self.sources = (self._gate.socket, self._socket, self._door.monitor)

    def begin(self, number: int) -> None:
        """This worker is to answer from now on."""
        self._heard[number] = time.monotonic()
        self._come.discard(number)

    def forget(self, number: int) -> None:
        """It is not asked any more."""
        self._heard.pop(number, None)
        self._come.discard(number)

    def next_time(self) -> float:
        """Monotonic, s; infinity: nothing is to be done before something comes."""
        times = [time.monotonic() + self._door.seconds_left()]
        if self._heard:
            times += [self._beats.next_word, min(self._heard.values()) + self._silence]
        return min(times)

    def hear(self, ready: Collection[object]) -> None:
        """``ready``: what is, of the ``sources`` and of others."""
        self._door.check()
        if self._gate.socket in ready:
            self._gate.answer()
        if self._socket in ready:
            name = self._socket.recv_multipart()[0]
            if len(name) == _NAME.size and (number := _NAME.unpack(name)[1]) in self._heard:
                self._heard[number] = time.monotonic()
                self._come.add(number)

    def look(self) -> Mapping[int, str]:
        """Asks when it is time to; returns who is lost, and how, in words. They are not asked any more."""
        now = time.monotonic()
        if self._beats.was_deaf(now, True):  # this process stood still itself, which makes nobody late
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
        except zmq.Again:  # it has more questions than it reads
            pass
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return
        self._come.add(number)

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
        # It waits for the thread to close its socket, and knows no deadline.
        ending = threading.Thread(target=self._context.term, name="horovod-pulse-end", daemon=True)
        ending.start()
        until = time.monotonic() + _CLOSE
        for thread in (ending, self._thread):
            thread.join(max(0.0, until - time.monotonic()))
