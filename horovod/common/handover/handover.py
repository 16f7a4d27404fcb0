"""Rank 0 hands the job's key to ranks that it knows by a public key on the launcher's board.

A ZeroMQ socket with CURVE: a client has to know the server's public key, which is on the board only, to begin with; it
proves to have the secret part of its own key and says which rank it is. It gets the job's key, encrypted, when the
public key on the board for that rank is the one that it came with. All keys here are made for this one use.
"""

import contextlib
import math
import secrets
import socket
import struct
import time
from collections.abc import Callable, Sequence

import zmq
import zmq.utils.z85

from horovod.common.contract.secret import Secret
from horovod.common.handover.search import Candidate
from horovod.common.store.dial import dial
from horovod.common.store.door import HANDSHAKE_SECONDS, Door
from horovod.common.store.serving import Serving

_RANK = struct.Struct("!I")
_KEY = 32
_ANSWER = struct.Struct(f"!H{_KEY}s")  # port of the store, job key
_CLOSE_SECONDS = 10.0
_LONGEST = 1024  # bytes of a message that is accepted


class Handover(Serving):
    """The side of rank 0: a thread of its own until ``close``."""

    def __init__(
        self, listeners: Sequence[socket.socket], known: Callable[[int], bytes | None], key: bytes, port: int
    ) -> None:
        """``listeners``: listening sockets, which then belong to it. ``known``: public key (32 bytes) of a rank.

        ``key``, ``port``: the job's key and the port of its store, what is handed out.
        """
        super().__init__("horovod-handover", _CLOSE_SECONDS)
        public, secret = zmq.curve_keypair()
        self.public: bytes = zmq.utils.z85.decode(public)
        """To be left on the board."""
        self._known = known
        self._answer = Secret(_ANSWER.pack(port, key))
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._gate = self._context.socket(zmq.REP)
        self._gate.bind("inproc://zeromq.zap.01")
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.curve_server = True
        self._socket.curve_publickey, self._socket.curve_secretkey = public, secret
        self._socket.zap_domain = b"horovod"
        self._socket.maxmsgsize = _LONGEST  # messages of the CURVE handshake count too
        self._socket.handshake_ivl = int(HANDSHAKE_SECONDS * 1000)
        self._door = Door(self._socket, listeners)
        self._start()

    def _serve(self) -> None:
        try:
            self._answer_all()
        finally:
            self._door.close()
            # The thread's own sockets. An answer may still be on its way.
            self._context.destroy(linger=1000)

    def _answer_all(self) -> None:
        poller = zmq.Poller()
        for source in (self._gate, self._socket, self._door.monitor, self._stop):
            poller.register(source, zmq.POLLIN)
        while True:
            left = self._door.seconds_left()
            ready = dict(poller.poll(None if left == math.inf else math.ceil(left * 1000)))
            if self._stop in ready:
                return
            self._door.check()
            if self._gate in ready:
                self._let_in()
            if self._socket in ready:
                frames = self._socket.recv_multipart(copy=False)
                with contextlib.suppress(zmq.ZMQError, struct.error, UnicodeError):
                    self._hand_out(frames)

    def _let_in(self) -> None:
        """Everybody who knows the server's key may ask; under which key goes with the message (ZAP, RFC 27)."""
        frames = self._gate.recv_multipart()
        request = frames[1] if len(frames) > 1 else b""
        fits = len(frames) == 7 and frames[5] == b"CURVE" and len(frames[6]) == 32
        user = zmq.utils.z85.encode(frames[6]) if fits else b""
        code, text = (b"200", b"OK") if fits else (b"400", b"no key")
        self._gate.send_multipart([b"1.0", request, code, text, user, b""])

    def _hand_out(self, frames: Sequence[zmq.Frame]) -> None:
        (rank,) = _RANK.unpack(frames[-1].bytes)
        if zmq.utils.z85.decode(str(frames[-1].get("User-Id"))) == self._known(rank):
            self._socket.send_multipart([frames[0].bytes, self._answer])


def receive(
    candidates: Sequence[Candidate], server: bytes, pair: tuple[bytes, bytes], rank: int, deadline: float
) -> tuple[str, int, bytes] | None:
    """(host, port of the store there, job key) from the first candidate that answers; None after ``deadline``.

    ``server``: public key of the other side, 32 bytes. ``pair``: this rank's own keys, (public, secret) in Z85.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
    poller = zmq.Poller()
    asked: dict[zmq.Socket[bytes], Candidate] = {}
    try:
        for host, port in candidates:
            name = secrets.token_bytes(8).replace(b"\0", b"_")
            sock = dial(context, host, port, pair, zmq.utils.z85.encode(server), _LONGEST, name)
            sock.send(_RANK.pack(rank))
            asked[sock] = host, port
            poller.register(sock, zmq.POLLIN)
        while True:
            left = deadline - time.monotonic()
            for sock, _ in poller.poll(int(max(0.0, left) * 1000)):
                data = Secret(sock.recv())
                if len(data) == _ANSWER.size:
                    store = _ANSWER.unpack(data)[0]
                    return asked[sock][0], store, Secret(data[-_KEY:])
            if left <= 0:
                return None
    finally:
        context.destroy(linger=0)
