"""A connection between the driver and each worker over which nothing is said but who is there: the kernel closes it
when either of them ends, however it does, so the other knows at once. A cluster manager may need ten seconds and more
to notice that a machine is gone, and leaves processes of its own running when a part of it dies.

Authenticated under the job's key (``auth``), with a label of its own. The worker ends when the driver is gone, or a
process that its manager says it cannot be without.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping

from horovod.common.network import keepalive
from horovod.common.security import auth
from horovod.common.security.auth import AuthError, derive_key
from horovod.common.store.serving import Serving
from horovod.runner.resident.mailbox import LONGEST

_LABEL = "lifeline"
_PURPOSE = 127
_SILENCE = 10.0  # s without a sign of the other host
_HANDSHAKE = 5.0  # s for a stranger to prove that it is none
_STRANGERS = 64  # at a time; others wait in the kernel until one of these is a member, or is dropped
_CLOSE = 5.0


class Lines(Serving):
    """The driver's ends: a thread until ``close``. ``gone`` gets the number of a worker whose line has broken, in that
    thread; of one that has hung up (``Line.close``) too."""

    def __init__(self, listener: socket.socket, job_key: bytes, gone: Callable[[int], None]) -> None:
        """``listener``: a listening socket, which then belongs to it."""
        super().__init__("horovod-lines", _CLOSE)
        self._listener = listener
        self._key = derive_key(job_key, _LABEL)
        self._gone = gone
        self._selector = selectors.DefaultSelector()
        self._strangers: dict[socket.socket, tuple[auth.Acceptor, float]] = {}
        self._members: dict[socket.socket, int] = {}
        self._start()

    def _serve(self) -> None:
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._stop, selectors.EVENT_READ)
        try:
            while True:
                until = min((until for _, until in self._strangers.values()), default=None)
                left = None if until is None else max(0.0, until - time.monotonic())
                ready = [key.fileobj for key, _ in self._selector.select(left)]
                if self._stop in ready:
                    return
                for sock in ready:
                    if isinstance(sock, socket.socket):
                        self._serve_one(sock)
                for sock in [s for s, (_, until) in self._strangers.items() if time.monotonic() >= until]:
                    self._drop(sock)
        finally:
            for sock in (*self._strangers, *self._members, self._listener):
                sock.close()
            self._selector.close()

    def _serve_one(self, sock: socket.socket) -> None:
        if sock is self._listener:
            self._accept()
        elif sock in self._members:
            self._hear(sock)
        elif sock in self._strangers:
            with contextlib.suppress(BlockingIOError):
                try:
                    self._meet(sock, self._strangers[sock][0])
                except (AuthError, OSError) as error:
                    if isinstance(error, BlockingIOError):
                        raise
                    self._drop(sock)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # it has gone again, or there are too many open files
            return
        sock.setblocking(False)
        self._strangers[sock] = auth.Acceptor(self._key, 0, 0), time.monotonic() + _HANDSHAKE
        self._selector.register(sock, selectors.EVENT_READ)
        if len(self._strangers) == _STRANGERS:
            self._selector.unregister(self._listener)

    def _meet(self, sock: socket.socket, side: auth.Acceptor) -> None:
        data = sock.recv(side.wanted)
        if not data:
            raise AuthError("it has hung up")
        side.feed(data)
        outgoing, side.outgoing = side.outgoing, b""
        if outgoing:  # some bytes for an empty buffer
            sock.sendall(outgoing)
        if side.done:
            if side.place.purpose != _PURPOSE:
                raise AuthError("another purpose")
            keepalive.apply(sock, _SILENCE, control=True)
            self._strange_no_more(sock)
            self._members[sock] = side.place.source - 1

    def _hear(self, sock: socket.socket) -> None:
        try:
            said = sock.recv(1)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            number = self._members.pop(sock)
            self._selector.unregister(sock)
            sock.close()
            self._gone(number)

    def _drop(self, sock: socket.socket) -> None:
        self._strange_no_more(sock)
        self._selector.unregister(sock)
        sock.close()

    def _strange_no_more(self, sock: socket.socket) -> None:
        if len(self._strangers) == _STRANGERS:
            self._selector.register(self._listener, selectors.EVENT_READ)
        del self._strangers[sock]


class Line:
    """The worker's end, with a thread that ends the process when the driver hangs up or a process of ``others``, pids
    with what they are, ends. Until ``close``."""

    def __init__(
        self, host: str, port: int, job_key: bytes, number: int, others: Mapping[int, str], seconds: float
    ) -> None:
        """Raises OSError or AuthError when the driver is not there, within ``seconds``."""
        seconds = min(seconds, LONGEST)
        self._sock = socket.create_connection((host, port), seconds)
        try:
            auth.connect(self._sock, derive_key(job_key, _LABEL), auth.Place(_PURPOSE, 0, number + 1, 0), seconds)
            self._sock.settimeout(None)
            keepalive.apply(self._sock, _SILENCE, control=True)
        except BaseException:
            self._sock.close()
            raise
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closed = False
        # A forked child must not keep the line open when this process is gone.
        os.register_at_fork(after_in_child=self._sock.close)
        self._thread = threading.Thread(target=self._watch, args=(others,), name="horovod-line", daemon=True)
        self._thread.start()

    def _watch(self, others: Mapping[int, str]) -> None:
        watched = {self._stop: "", self._sock.fileno(): "the driver"}
        with contextlib.ExitStack() as at_end, selectors.DefaultSelector() as selector:
            for pid, what in others.items():
                try:
                    fd = os.pidfd_open(pid)
                except OSError:  # it has ended before, or the kernel cannot tell
                    continue
                at_end.callback(os.close, fd)
                watched[fd] = what
            for fd in watched:
                selector.register(fd, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    what = watched[key.fd]
                    if key.fd == self._stop:
                        return
                    if key.fd != self._sock.fileno() or self._is_closed():
                        print(f"horovod: this worker ends, for {what} is gone", file=sys.stderr, flush=True)
                        os._exit(1)

    def _is_closed(self) -> bool:
        try:
            return not self._sock.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """This process leaves the job, and goes on. May be called again."""
        if not self._closed:
            self._closed = True
            os.eventfd_write(self._stop, 1)
            self._thread.join(_CLOSE)
            self._sock.close()
            os.close(self._stop)
