"""Launcher side of the streams through which workers on other hosts connect to the job's store. See `agent.relay`."""

from __future__ import annotations

import select
import socket

from horovod.common.store.membership import MembershipControl
from horovod.common.store.messages import MAX_REQUEST_BYTES
from horovod.common.store.server import StoreServer
from horovod.runner.agent.messages import ByteWriter, StreamData, StreamEnd, StreamOpen
from horovod.runner.remote.connections import Agent

READ_SIZE = 1 << 18
# Maximum bytes queued for an agent before the launcher stops reading the store's answers
QUEUE_LIMIT = 4 << 20
# Maximum bytes queued for the store before a connection is closed. Only an unauthenticated peer can exceed this limit,
# because ranks wait for each answer before they send the next request.
REQUEST_LIMIT = 2 * MAX_REQUEST_BYTES


def open_store(key: bytes, control: MembershipControl | None = None) -> StoreServer:
    """Open the job's store on the loopback interface. Raises OSError if this fails."""
    try:
        return StoreServer(key, control=control)
    except ValueError as error:
        raise OSError(str(error)) from None


class StoreRelay:
    """Connections to the job's store, one for each stream. No call blocks, because the store is on this machine.

    Attributes:
        limit: Maximum number of simultaneous connections, which can be changed. Each connection uses two descriptors of
            this process, including the store's end. Unauthenticated peers on the agent's host can open connections,
            too.
        refused: Host of the first connection that exceeded the limit, or an empty string.
    """

    def __init__(self, address: tuple[str, int], limit: int) -> None:
        self._address = address
        self.limit = limit
        self.refused = ""
        self._sockets: dict[tuple[Agent, int], tuple[Agent, socket.socket, ByteWriter]] = {}

    def take(self, agent: Agent, report: StreamOpen | StreamData | StreamEnd) -> None:
        """Handle an agent's report about one of its connections to the store."""
        key = (agent, report.stream)
        if isinstance(report, StreamOpen):
            if len(self._sockets) >= self.limit:
                self.refused = self.refused or agent.host
                agent.send(StreamEnd(report.stream))
                return
            sock = socket.socket(socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET)
            sock.setblocking(False)
            sock.connect_ex(self._address)  # Ignore the result, because the first read reports a failed connection.
            self._sockets[key] = (agent, sock, ByteWriter(sock.fileno()))
        elif key in self._sockets:
            writer = self._sockets[key][2]
            if isinstance(report, StreamEnd):
                self._sockets.pop(key)[1].close()
            elif writer.pending + len(report.data) <= REQUEST_LIMIT:
                writer.write(report.data)
            else:
                self._end(key)

    def events(self) -> dict[int, int]:
        """Return the file descriptors to poll, with their poll events."""
        wanted: dict[int, int] = {}
        for agent, sock, writer in self._sockets.values():
            event = select.POLLOUT if writer.pending and not writer.broken else 0
            if agent.connection is not None and agent.connection.pending < QUEUE_LIMIT:
                event |= select.POLLIN
            if event:
                wanted[sock.fileno()] = event
        return wanted

    def serve(self, ready: set[int]) -> None:
        """Transfer data between the streams and the sockets that are ready."""
        for key, (agent, sock, writer) in list(self._sockets.items()):
            if agent.closed:
                self._sockets.pop(key)[1].close()
                continue
            writer.flush()
            if sock.fileno() not in ready or agent.connection is None or agent.connection.pending >= QUEUE_LIMIT:
                continue
            try:
                data = sock.recv(READ_SIZE)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if data:
                agent.send(StreamData(key[1], data))
            else:
                self._end(key)

    def _end(self, key: tuple[Agent, int]) -> None:
        agent, sock, _ = self._sockets.pop(key)
        agent.send(StreamEnd(key[1]))
        sock.close()

    def close(self) -> None:
        """Close all connections to the store."""
        for _, sock, _ in self._sockets.values():
            sock.close()
        self._sockets = {}
