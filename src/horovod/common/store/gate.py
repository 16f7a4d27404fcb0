"""Socket that serves only the members of a job: ZeroMQ with CURVE, with keys derived from the job's key."""

from __future__ import annotations

import zmq
from zmq.utils import z85

from horovod.common.store.door import HANDSHAKE_SECONDS
from horovod.common.store.messages import curve_pair


class Gate:
    """Authenticator of ZeroMQ's clients (ZAP, RFC 27): admits only the job's client key."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], key: bytes) -> None:
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind("inproc://zeromq.zap.01")
        self._accepted = z85.decode(curve_pair(key, "client")[0])

    def answer(self) -> None:
        """Answer one question of ZeroMQ about a client."""
        frames = self.socket.recv_multipart()
        request = frames[1] if len(frames) > 1 else b""
        mechanism, credentials = (frames[5], frames[6:]) if len(frames) > 5 else (b"", [])
        # Public keys are not secret, so a plain comparison is sufficient; the CURVE handshake proves possession of the
        # secret key.
        known = mechanism == b"CURVE" and credentials == [self._accepted]
        code, text = (b"200", b"OK") if known else (b"400", b"not a member of this job")
        self.socket.send_multipart([b"1.0", request, code, text, b"member" if known else b"", b""])


def serving(context: zmq.Context[zmq.Socket[bytes]], key: bytes, longest: int, queued: int) -> zmq.Socket[bytes]:
    """Return a server socket that uses the authenticator of the same context; it is not bound yet.

    Args:
        context: ZeroMQ context.
        key: The job's key.
        longest: Maximum bytes of a frame, including CURVE's handshake.
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
