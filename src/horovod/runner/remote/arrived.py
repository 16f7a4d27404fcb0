"""Connections from agents that another system has started and that have connected to the launcher themselves.

The connections are already encrypted and authenticated.
"""

from __future__ import annotations

import select
import socket
import time

from horovod.common.security.auth import AuthError
from horovod.common.security.channel import Channel
from horovod.runner.plan.hosts import Host
from horovod.runner.remote import ssh
from horovod.runner.remote.connections import READ_SIZE, Connection

_BROKE = "the process that held it has ended, or its host cannot be reached"


class ArrivedConnection:
    """Encrypted socket connection to an agent. `rest` is data that was already received and decrypted."""

    def __init__(self, sock: socket.socket, channel: Channel, rest: bytes = b"") -> None:
        sock.setblocking(False)
        self._sock = sock
        self._channel = channel
        self._rest = rest
        # Encrypted data that has not been sent yet
        self._queue = bytearray()
        self._closes = False  # True if the socket must be closed once all queued data is sent
        self.ended = False
        self.status: int | None = None
        self.stderr_tail = _BROKE

    @property
    def pending(self) -> int:
        return len(self._queue)

    @property
    def fd(self) -> int:
        """File descriptor of the socket, or -1 if it is closed."""
        return self._sock.fileno()

    @property
    def closed(self) -> bool:
        """True if the agent has closed the connection. Reading this property does not consume any data."""
        poll = select.poll()
        if self.ended or self.fd < 0:
            return True
        poll.register(self.fd, select.POLLRDHUP)
        return bool(poll.poll(0))

    def events(self, listening: bool) -> dict[int, int]:
        wanted = (select.POLLIN if listening else 0) | (select.POLLOUT if self._queue else 0)
        return {self.fd: wanted} if wanted and self.fd >= 0 else {}

    def may_have(self, ready: set[int]) -> bool:
        return bool(self._rest) or self.fd in ready

    def read(self) -> bytes:
        rest, self._rest = self._rest, b""
        if self.ended:
            return rest
        try:
            data = self._sock.recv(READ_SIZE)
        except BlockingIOError:
            return rest
        except OSError:
            data = b""
        if not data:
            self.ended = True
            return rest
        try:
            return rest + self._channel.feed(data)
        except AuthError as error:
            self.ended, self.stderr_tail = True, str(error)
            return rest

    def write(self, data: bytes) -> None:
        if not self.ended and not self._closes:
            self._channel.write(data)
            self._queue += self._channel.take()
            self.flush()

    def flush(self) -> None:
        while self._queue and not self.ended:
            try:
                sent = self._sock.send(memoryview(self._queue)[: 1 << 16])
            except BlockingIOError:
                return
            except OSError:  # Drop the unsent data, but keep the connection to read the agent's last messages.
                self._queue.clear()
                return
            del self._queue[:sent]
        if self._closes and not self._queue:
            self._shut(socket.SHUT_WR)

    def hang_up(self) -> None:
        self._closes = True
        self.flush()

    def kill(self) -> None:
        self._queue.clear()
        self.ended = True
        self._shut(socket.SHUT_RDWR)

    def cut_off(self) -> None:
        """Do nothing, because this connection does not run through another agent."""

    def end(self, deadline: float) -> int | None:
        """Wait until `deadline` for the agent to exit, then close the connection.

        The exit code is unknown, so return None.
        """
        self.hang_up()
        poll = select.poll()
        while not self.ended and (left := deadline - time.monotonic()) > 0:
            poll.register(self._sock, select.POLLIN | (select.POLLOUT if self._queue else 0))
            poll.poll(left * 1000)
            self.flush()
            self.read()
        self.kill()
        self._sock.close()
        return None

    def _shut(self, how: int) -> None:
        try:
            self._sock.shutdown(how)
        except OSError:
            pass


class Arrived:
    """Collection of the agents that have connected to the launcher, by host name. It implements `Reach`."""

    def __init__(self) -> None:
        self._connections: dict[str, ArrivedConnection] = {}

    def add(self, name: str, connection: ArrivedConnection) -> None:
        """Add the connection of the agent on the host ``name``, for a later call of ``open``."""
        self._connections[name] = connection

    @property
    def waiting(self) -> list[str]:
        """Names of the connected agents that the job has not started to use."""
        return list(self._connections)

    def drop(self, name: str) -> None:
        """Disconnect an agent that the job has not started to use."""
        if connection := self._connections.pop(name, None):
            connection.end(time.monotonic())

    def close(self) -> None:
        """Disconnect all agents that the job has not started to use."""
        for name in self.waiting:
            self.drop(name)

    def open(self, host: Host) -> Connection:
        """Return the connection to the host's agent. Raises OSError if there is none or if it was already opened."""
        connection = self._connections.pop(host.name, None)
        if connection is None:
            raise OSError(0, "it is gone", host.name)
        return connection

    def explain(self, host: Host, status: int | None, stderr: str, greeting: str) -> ssh.Failure:
        what = "\n".join(["it closed its connection before its first message", *greeting.strip().splitlines()[-12:]])
        return ssh.Failure(what, "its own output may say why")
