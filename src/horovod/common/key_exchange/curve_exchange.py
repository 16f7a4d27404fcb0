"""Send the job key from rank 0 to ranks whose public keys are in the launcher's key-value store (the board).

The connection is a ZeroMQ socket with CURVE. A client must know the server's public key, which is published only on the
board. The client proves that it has a secret key, and says which rank it is. The server compares the client's public
key with the one on the board for that rank. If they match, the client gets the encrypted job key. All key pairs are
created for this purpose only.
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

from horovod.common.contract.private_files import Secret
from horovod.common.key_exchange.search import Candidate
from horovod.common.store.sockets import HANDSHAKE_SECONDS, AcceptControl, ThreadedServer, dial

_RANK = struct.Struct("!I")
_KEY = 32
_REPLY = struct.Struct(f"!H{_KEY}s")  # format of the answer: the port of the store, and the job key
_CLOSE_SECONDS = 10.0
_LONGEST = 1024  # maximum size of a message in bytes


class CurveKeyServer(ThreadedServer):
    """Server thread in rank 0 that sends the job's key to ranks with public keys in the launcher's key-value store."""

    def __init__(
        self, listeners: Sequence[socket.socket], key_of: Callable[[int], bytes | None], key: bytes, port: int
    ) -> None:
        """Start the server that sends the job's key to ranks.

        Args:
            listeners: Listening sockets, of which this object takes ownership.
            key_of: Function that returns a rank's public key (32 bytes), or None.
            key: The job's key.
            port: Port of the job's store.
        """
        super().__init__("horovod-keys", _CLOSE_SECONDS)
        public, secret = zmq.curve_keypair()
        self.public: bytes = zmq.utils.z85.decode(public)
        """Public key to publish in the launcher's key-value store (the board)."""
        self._key_of = key_of
        self._reply = Secret(_REPLY.pack(port, key))
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._authentication = self._context.socket(zmq.REP)
        self._authentication.bind("inproc://zeromq.zap.01")
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.curve_server = True
        self._socket.curve_publickey, self._socket.curve_secretkey = public, secret
        self._socket.zap_domain = b"horovod"
        self._socket.maxmsgsize = _LONGEST  # ZeroMQ applies the limit also to messages of the CURVE handshake
        self._socket.handshake_ivl = int(HANDSHAKE_SECONDS * 1000)
        self._accepts = AcceptControl(self._socket, listeners)
        self._start()

    def _serve(self) -> None:
        try:
            self._reply_to_all()
        finally:
            self._accepts.close()
            # Close the sockets in this thread, which owns them. First wait up to 1 s for pending answers.
            self._context.destroy(linger=1000)

    def _reply_to_all(self) -> None:
        poller = zmq.Poller()
        for source in (self._authentication, self._socket, self._accepts.monitor, self._stop):
            poller.register(source, zmq.POLLIN)
        while True:
            left = self._accepts.seconds_left()
            ready = dict(poller.poll(None if left == math.inf else math.ceil(left * 1000)))
            if self._stop in ready:
                return
            self._accepts.check()
            if self._authentication in ready:
                self._let_in()
            if self._socket in ready:
                frames = self._socket.recv_multipart(copy=False)
                with contextlib.suppress(zmq.ZMQError, struct.error, UnicodeError):
                    self._hand_out(frames)

    def _let_in(self) -> None:
        """Accept every client that knows the server's key, and attach the client's key to its messages (ZAP)."""
        frames = self._authentication.recv_multipart()
        request = frames[1] if len(frames) > 1 else b""
        fits = len(frames) == 7 and frames[5] == b"CURVE" and len(frames[6]) == 32
        user = zmq.utils.z85.encode(frames[6]) if fits else b""
        code, text = (b"200", b"OK") if fits else (b"400", b"no key")
        self._authentication.send_multipart([b"1.0", request, code, text, user, b""])

    def _hand_out(self, frames: Sequence[zmq.Frame]) -> None:
        (rank,) = _RANK.unpack(frames[-1].bytes)
        if zmq.utils.z85.decode(str(frames[-1].get("User-Id"))) == self._key_of(rank):
            self._socket.send_multipart([frames[0].bytes, self._reply])


def receive(
    candidates: Sequence[Candidate], server: bytes, pair: tuple[bytes, bytes], rank: int, deadline: float
) -> tuple[str, int, bytes] | None:
    """Get the job's key from the first candidate that answers.

    Args:
        candidates: Addresses to try.
        server: Public key of the server in rank 0, 32 bytes.
        pair: This rank's keys, (public, secret) in Z85.
        rank: This rank.
        deadline: Monotonic time in seconds.

    Returns:
        (host, port of its store, job key), or None if no candidate answers before ``deadline``.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
    poller = zmq.Poller()
    requests: dict[zmq.Socket[bytes], Candidate] = {}
    try:
        for host, port in candidates:
            name = secrets.token_bytes(8).replace(b"\0", b"_")
            sock = dial(context, host, port, pair, zmq.utils.z85.encode(server), _LONGEST, name)
            sock.send(_RANK.pack(rank))
            requests[sock] = host, port
            poller.register(sock, zmq.POLLIN)
        while True:
            left = deadline - time.monotonic()
            for sock, _ in poller.poll(int(max(0.0, left) * 1000)):
                data = Secret(sock.recv())
                if len(data) == _REPLY.size:
                    store = _REPLY.unpack(data)[0]
                    return requests[sock][0], store, Secret(data[-_KEY:])
            if left <= 0:
                return None
    finally:
        context.destroy(linger=0)
