"""Connections to agents: a child process (the agent or ssh), or a stream through another agent."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Protocol

from horovod.runner.protocol.messages import CHUNK, ByteWriter, Request, Spawn, StreamData, StreamEnd

READ_SIZE = 1 << 18
SAID_LIMIT = 1 << 14  # bytes of stderr kept to explain an end


class Connection(Protocol):
    """Byte stream to and from an agent. Only `end` blocks."""

    ended: bool  # True if no more data will come
    status: int | None  # exit status of the process at the other end, once known

    def events(self, listening: bool) -> dict[int, int]:
        """Return descriptors and their poll events. If `listening` is False, incoming data is not read."""

    def may_have(self, ready: set[int]) -> bool:
        """Return True if there may be data to read when these descriptors are ready."""

    def read(self) -> bytes:
        """Return the received bytes; sets `ended` at the end of the stream."""

    def write(self, data: bytes) -> None:
        """Queue bytes for the agent."""

    def flush(self) -> None:
        """Write as many queued bytes as possible without blocking."""

    def hang_up(self) -> None:
        """Close the request pipe, which makes the agent end everything."""

    def kill(self) -> None:
        """Close the connection to a lost host without waiting."""

    def cut_off(self) -> None:
        """Record that the agent in between has ended."""

    def end(self, deadline: float) -> int | None:
        """Hang up, wait until `deadline` (monotonic, s), then kill. Returns the exit code, None if not known."""

    @property
    def pending(self) -> int:
        """Number of bytes that wait to be written."""

    @property
    def stderr_tail(self) -> str:
        """Last part of what came on stderr."""


class Carrier(Protocol):
    """Agent through which other agents are reached."""

    def send(self, message: Request) -> None:
        """Send a message to the agent."""

    def add_stream(self, connection: StreamConnection) -> int:
        """Return the number of a new stream, whose data is delivered to `connection`."""


class ProcessConnection:
    """Connection to a child process. If `remote`, its stderr is kept for messages, else it shares ours."""

    def __init__(self, command: Sequence[str], *, remote: bool) -> None:
        """Start the command. Raises OSError when it cannot be run."""
        # In a new session, so that Ctrl-C in the terminal reaches only the launcher, which decides what it means.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if remote else None,
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.ended = False
        self.status: int | None = None
        self._out = self._process.stdout.fileno()
        os.set_blocking(self._out, False)
        self._err = self._process.stderr.fileno() if self._process.stderr is not None else -1
        if self._err >= 0:
            os.set_blocking(self._err, False)
        self._writer = ByteWriter(self._process.stdin.fileno())
        self._said = bytearray()

    @property
    def pending(self) -> int:
        return self._writer.pending

    @property
    def stderr_tail(self) -> str:
        self._listen()
        return self._said.decode(errors="replace")

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def flush(self) -> None:
        self._writer.flush()
        self._listen()

    def events(self, listening: bool) -> dict[int, int]:
        wanted = {self._out: select.POLLIN} if listening else {}
        if self._writer.pending and not self._writer.broken:
            wanted[self._writer.fd] = select.POLLOUT
        return wanted

    def may_have(self, ready: set[int]) -> bool:
        return self._out in ready

    def read(self) -> bytes:
        """Return the received bytes; sets `ended` at the end of the stream."""
        self._listen()
        try:
            data = os.read(self._out, READ_SIZE)
        except BlockingIOError:
            return b""
        if not data:
            self.ended = True
        return data

    def _listen(self) -> None:
        """Read stderr, so that its pipe cannot fill."""
        if self._err < 0:
            return
        try:
            while data := os.read(self._err, READ_SIZE):
                self._said += data
                del self._said[:-SAID_LIMIT]
        except (BlockingIOError, OSError):
            pass

    def hang_up(self) -> None:
        """Close the request pipe, which makes the agent end everything."""
        self._writer.broken = True
        if self._process.stdin is not None:
            self._process.stdin.close()

    def cut_off(self) -> None:
        """Do nothing: no agent is in between."""

    def kill(self) -> None:
        """Kill the process, such as an ssh whose host is lost."""
        if self._process.returncode is not None:  # the pid may have been reused
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass

    def end(self, deadline: float) -> int | None:
        """Wait for the process until `deadline` (monotonic), then kill it. Returns its exit code."""
        self.hang_up()
        while not self.ended and time.monotonic() < deadline:  # read its reports, which could block it
            if not self.read() and not self.ended:
                time.sleep(0.01)
        try:
            self._process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait(5)
        self._listen()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None and not stream.closed:
                stream.close()
        self._err = -1
        self.ended = True
        self.status = self._process.returncode
        return self.status


class StreamConnection:
    """Connection through another agent, which runs the command. `deliver` is called with incoming data."""

    def __init__(self, carrier: Carrier, command: Sequence[bytes]) -> None:
        self._send = carrier.send
        self.ended = False
        self.status: int | None = None
        self._received = bytearray()
        self._said = bytearray()
        self._stream = carrier.add_stream(self)
        self._send(Spawn(self._stream, list(command)))

    @property
    def pending(self) -> int:
        return 0

    @property
    def stderr_tail(self) -> str:
        return self._said.decode(errors="replace")

    def write(self, data: bytes) -> None:
        for offset in range(0, len(data), CHUNK):
            self._send(StreamData(self._stream, data[offset : offset + CHUNK]))

    def flush(self) -> None:
        pass

    def events(self, listening: bool) -> dict[int, int]:
        return {}

    def may_have(self, ready: set[int]) -> bool:
        return True

    def cut_off(self) -> None:
        self.ended = True

    def deliver(self, message: StreamData | StreamEnd) -> None:
        """Take data, or the end of the stream, from the agent in between."""
        if isinstance(message, StreamEnd):
            self.ended, self.status = True, message.status
        elif message.error:
            self._said += message.data
            del self._said[:-SAID_LIMIT]
        else:
            self._received += message.data

    def read(self) -> bytes:
        data = bytes(self._received)
        self._received.clear()
        return data

    def hang_up(self) -> None:
        self._send(StreamEnd(self._stream))

    def kill(self) -> None:
        self._send(StreamEnd(self._stream, signal.SIGKILL))

    def end(self, deadline: float) -> int | None:
        """Return the status. The agent in between ends the process, so there is nothing to wait for."""
        return self.status
