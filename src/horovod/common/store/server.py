"""Server of the store, which handles all requests in a single thread with one poll loop."""

import contextlib
import math
import time
from collections.abc import Sequence
from socket import socket as TcpSocket

import msgspec
import zmq

from horovod.common.store.membership import MembershipControl
from horovod.common.store.messages import MAX_FRAME_BYTES, MAX_REQUEST_BYTES, Request, frames
from horovod.common.store.sockets import AcceptControl, ClientAuthenticator, ThreadedServer, listen, server_socket
from horovod.common.store.table import Table, Waiting

_CLOSE_SECONDS = 10.0
_QUEUED = 64  # maximum number of queued messages per client and direction


class StoreServer(ThreadedServer):
    """Server of one job's key-value store.

    It runs in its own threads until ``close``, which frees the port immediately.
    """

    def __init__(
        self,
        key: bytes,
        host: str = "127.0.0.1",
        *,
        listeners: Sequence[TcpSocket] = (),
        control: MembershipControl | None = None,
    ) -> None:
        """Start the server of the store in its own thread.

        Args:
            key: The job's key.
            host: Address of the interface on which to listen. The system chooses the port.
            listeners: Sockets that already listen on a common port, to use instead of ``host``. The server then owns
                them.
            control: Launcher's interface to the membership server, in an elastic job.

        Raises:
            ValueError: If ``host`` is not an address of this machine.
        """
        listeners = listeners or [listen(host)]
        super().__init__("horovod-store", _CLOSE_SECONDS)
        self._context = zmq.Context(io_threads=1)
        last: tuple[str, int] = listeners[-1].getsockname()[:2]
        self.address = last
        """(host, port) to connect to: HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT."""
        try:
            self._authenticator = ClientAuthenticator(self._context, key)
            self._socket = server_socket(self._context, key, MAX_FRAME_BYTES, _QUEUED)
            self._accepts = AcceptControl(self._socket, listeners)
        except BaseException:
            self._context.destroy(linger=0)
            super().close()
            for listener in listeners:
                listener.close()
            raise
        self._control = control
        self._table = Table(control.requests if control is not None else None)
        self._start()

    @property
    def completed(self) -> int:
        """Number of completed exchanges. Thread-safe, even after ``close``."""
        return self._table.completed

    def waiting(self) -> Waiting:
        """Return the ranks that are waiting in exchanges. Thread-safe, even after ``close``."""
        return self._table.waiting

    def close(self) -> None:
        """Stop the server. Clients that are waiting for a reply time out. Can be called repeatedly."""
        if not self._closed:
            super().close()
            self._context.destroy(linger=0)

    def _serve(self) -> None:
        table, socket, control = self._table, self._socket, self._control
        authenticator, accepts = self._authenticator, self._accepts
        decoder = msgspec.msgpack.Decoder(Request)
        encoder = msgspec.msgpack.Encoder()
        poller = zmq.Poller()
        for source in (socket, authenticator.socket, accepts.monitor, self._stop):
            poller.register(source, zmq.POLLIN)
        if control is not None:
            poller.register(control.requested, zmq.POLLIN)
        while True:
            left = min(table.next_deadline() - time.monotonic(), accepts.seconds_left())
            ready = dict(poller.poll(None if left == math.inf else max(0, math.ceil(left * 1000))))
            if self._stop in ready:
                break
            accepts.check()
            replies = []
            if authenticator.socket in ready:
                authenticator.reply()
            if socket in ready:
                client, *parts = socket.recv_multipart()
                # Ignore invalid messages from clients: those that are too long, not UTF-8 or too deeply nested.
                with contextlib.suppress(ValueError, RecursionError):
                    replies += table.handle(client, decoder.decode(_joined(parts)), time.monotonic())
            if control is not None:
                replies += control.serve(table)
            replies += table.expire(time.monotonic())
            table.publish()
            for client, reply in replies:
                socket.send_multipart([client, *frames(encoder.encode(reply))])
        accepts.close()
        socket.close(linger=0)
        authenticator.socket.close(linger=0)

    def __enter__(self) -> "StoreServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _joined(parts: Sequence[bytes]) -> bytes:
    if sum(map(len, parts)) > MAX_REQUEST_BYTES:
        raise ValueError("a request that is too long")
    return b"".join(parts)
