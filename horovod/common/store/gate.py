"""The socket at which members of a job are served, and nobody else: ZeroMQ with CURVE under keys that follow from the
job's."""

from __future__ import annotations

import zmq
import zmq.utils.z85

from horovod.common.store.door import HANDSHAKE_SECONDS
from horovod.common.store.messages import curve_pair


class Gate:
    """Answers ZeroMQ's question (ZAP, RFC 27) whether a client may come in: only with the job's client key."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], key: bytes) -> None:
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind("inproc://zeromq.zap.01")
        self._accepted = zmq.utils.z85.decode(curve_pair(key, "client")[0])

    def answer(self) -> None:
        frames = self.socket.recv_multipart()
        request = frames[1] if len(frames) > 1 else b""
        mechanism, credentials = (frames[5], frames[6:]) if len(frames) > 5 else (b"", [])
        # Public keys are no secret, so a plain comparison will do; the CURVE handshake proved that the peer has the
        # secret one.
        known = mechanism == b"CURVE" and credentials == [self._accepted]
        code, text = (b"200", b"OK") if known else (b"400", b"not a member of this job")
        self.socket.send_multipart([b"1.0", request, code, text, b"member" if known else b"", b""])


def serving(context: zmq.Context[zmq.Socket[bytes]], key: bytes, longest: int, queued: int) -> zmq.Socket[bytes]:
    """The socket behind the gate of the same context; connected to nothing yet. ``longest``: bytes of a frame that is
    accepted, those of CURVE's handshake too. ``queued``: messages that wait for a member that does not read, and from
    one that is not served yet."""
    socket = context.socket(zmq.ROUTER)
    socket.curve_server = True
    socket.curve_publickey, socket.curve_secretkey = curve_pair(key, "server")
    socket.zap_domain = b"horovod"
    socket.maxmsgsize = longest
    socket.handshake_ivl = int(HANDSHAKE_SECONDS * 1000)
    socket.rcvhwm = socket.sndhwm = queued
    socket.linger = 0
    return socket
