"""Connections through which the launcher exchanges messages with agents: child processes, ssh, or other agents."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Protocol

from horovod.runner.agent.messages import (
    BANNER_LIMIT,
    CHUNK,
    MAGIC,
    ByteWriter,
    Exited,
    FrameReader,
    HostFacts,
    Output,
    Report,
    Request,
    Result,
    Spawn,
    Stopped,
    StreamData,
    StreamEnd,
    frame,
)
from horovod.runner.base.job_result import AgentError
from horovod.runner.plan.hosts import Host, Slot

READ_SIZE = 1 << 18
STDERR_LIMIT = 1 << 14  # Number of bytes kept from the end of stderr, to explain why a connection ended


class Connection(Protocol):
    """Interface for byte streams to and from an agent. Only `end` can block.

    Attributes:
        ended: True if no more data will arrive.
        status: Exit status of the process at the other end, or None if it is unknown.
    """

    ended: bool
    status: int | None

    def events(self, listening: bool) -> dict[int, int]:
        """Return the file descriptors to poll, with their poll events.

        If `listening` is False, do not wait for input.
        """

    def may_have(self, ready: set[int]) -> bool:
        """Return True if data might be available. `ready` is the set of descriptors that poll() reported."""

    def read(self) -> bytes:
        """Return the received bytes. Set `ended` if the stream has ended."""

    def write(self, data: bytes) -> None:
        """Queue data for the agent."""

    def flush(self) -> None:
        """Write as much queued data as possible without blocking."""

    def hang_up(self) -> None:
        """Close the agent's input, so that the agent stops the job's processes on its host."""

    def kill(self) -> None:
        """Close the connection to a lost host without waiting."""

    def cut_off(self) -> None:
        """Record that the agent that relays this connection has exited."""

    def end(self, deadline: float) -> int | None:
        """Close the agent's input, wait until `deadline` (monotonic, s) for it to exit, then kill the process.

        Returns:
            Exit code of the process, or None if it is unknown.
        """

    @property
    def pending(self) -> int:
        """Number of bytes that are queued but not written."""

    @property
    def stderr_tail(self) -> str:
        """The last part of the text received on stderr."""


class Carrier(Protocol):
    """Interface of an agent that relays the launcher's connections to other agents."""

    def send(self, message: Request) -> None:
        """Send a message to this agent."""

    def add_stream(self, connection: StreamConnection) -> int:
        """Open a new stream and return its number. Incoming data is passed to `connection`."""


class ProcessConnection:
    """Connection to an agent that runs as a child process, such as ssh.

    If `remote` is True, the process's stderr is kept for messages. If False, the process inherits the launcher's
    stderr.
    """

    def __init__(self, command: Sequence[str], *, remote: bool) -> None:
        """Start the command as a child process. Raises OSError if it cannot be run."""
        # Start a new session, so that Ctrl-C reaches only the launcher, which decides what to do.
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
        self._stderr = bytearray()

    @property
    def pending(self) -> int:
        return self._writer.pending

    @property
    def stderr_tail(self) -> str:
        self._listen()
        return self._stderr.decode(errors="replace")

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
        self._listen()
        try:
            data = os.read(self._out, READ_SIZE)
        except BlockingIOError:
            return b""
        if not data:
            self.ended = True
        return data

    def _listen(self) -> None:
        """Read stderr, because the process would block if its stderr pipe were full."""
        if self._err < 0:
            return
        try:
            while data := os.read(self._err, READ_SIZE):
                self._stderr += data
                del self._stderr[:-STDERR_LIMIT]
        except (BlockingIOError, OSError):
            pass

    def hang_up(self) -> None:
        self._writer.broken = True
        if self._process.stdin is not None:
            self._process.stdin.close()

    def cut_off(self) -> None:
        """Do nothing, because this connection is not relayed through another agent."""

    def kill(self) -> None:
        """Kill the child process, for example an ssh client whose host is lost."""
        if self._process.returncode is not None:  # The process has exited, and another one might have the same pid.
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass

    def end(self, deadline: float) -> int | None:
        """Wait until `deadline` (monotonic, s) for the process to exit, then kill it. Return its exit code."""
        self.hang_up()
        # Keep reading, because a process that writes to a full pipe cannot exit.
        while not self.ended and time.monotonic() < deadline:
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
    """Connection to an agent on a host that only another agent can reach.

    The other agent runs the ssh command, and relays its data as stream messages, which arrive in `deliver`.
    """

    def __init__(self, carrier: Carrier, command: Sequence[bytes]) -> None:
        self._send = carrier.send
        self.ended = False
        self.status: int | None = None
        self._received = bytearray()
        self._stderr = bytearray()
        self._stream = carrier.add_stream(self)
        self._send(Spawn(self._stream, list(command)))

    @property
    def pending(self) -> int:
        return 0

    @property
    def stderr_tail(self) -> str:
        return self._stderr.decode(errors="replace")

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
        """Process a message from the relaying agent: data from the stream, or its end."""
        if isinstance(message, StreamEnd):
            self.ended, self.status = True, message.status
        elif message.error:
            self._stderr += message.data
            del self._stderr[:-STDERR_LIMIT]
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
        """Return the exit status if it is known. Do not wait, because the relaying agent ends the command itself."""
        return self.status


class Agent:
    """Launcher's side of the connection to the agent on one host.

    Attributes:
        slots: Slots of the ranks on the host. In elastic jobs, the list is empty.
        numbers: Ranks that have run on the host at any time. In elastic jobs, these are worker numbers.
        connection: Connection to the agent, or None if it has not been opened.
        facts: Information about the host from the agent's Hello message, or None before this message.
        clock_offset: Seconds by which the host's clock was ahead when the Hello message arrived.
        finished: True if the agent has reported that all processes of the job on the host have exited.
        closed: True if the connection has ended or could not be opened.
        lost: True if the launcher has given up on the host, because it was unreachable or silent.
        notice: Reason why the agent itself decided to end the job, or an empty string.
        last_heard: Time of the last message from the agent (monotonic, s).
        since: Time of the first attempt to connect (monotonic, s).
        streams: Connections to other agents that run through this agent, by stream number.
    """

    def __init__(self, host: str, slots: Sequence[Slot], *, remote: bool, python: str = "") -> None:
        self.host = host
        self.slots = list(slots)
        self.numbers = {slot.rank for slot in slots}
        self.remote = remote
        self.python = python
        self.connection: Connection | None = None
        self.facts: HostFacts | None = None
        self.clock_offset = 0.0
        self.finished = False
        self.closed = False
        self.lost = False
        self.notice = ""
        self.last_heard = time.monotonic()
        self.since = self.last_heard
        self.streams: dict[int, StreamConnection] = {}
        self._next_stream = 2  # The launcher uses even stream numbers, and the agent uses odd ones.
        self._reader: FrameReader[Report] = FrameReader(Report)
        self._banner: bytearray | None = bytearray()

    @property
    def ranks(self) -> str:
        """The host's ranks as text, such as `rank 3` or `ranks 4-7`."""
        numbers = [slot.rank for slot in self.slots]
        return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {numbers[0]}-{numbers[-1]}"

    @property
    def name(self) -> str:
        """The host and its ranks as text, such as `host a (ranks 4-7)`. In elastic jobs, the host alone."""
        return f"host {self.host} ({self.ranks})" if self.slots else f"host {self.host}"

    @property
    def greeting(self) -> str:
        """Output before the agent's first message, such as a login banner.

        It is empty once this message has arrived.
        """
        return (self._banner or b"").decode(errors="replace")

    def attach(self, connection: Connection) -> None:
        """Switch to a new connection to the agent, and again expect a login banner and the Hello message."""
        self.connection = connection
        self.closed = False
        self._reader = FrameReader(Report)
        self._banner = bytearray()

    @property
    def place(self) -> Host:
        """The agent's host, with its number of slots and its Python interpreter."""
        return Host(self.host, len(self.slots), self.python)

    def add_stream(self, connection: StreamConnection) -> int:
        """Open a new stream through this agent and return its number. Incoming data is passed to `connection`."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        self.streams[stream] = connection
        return stream

    def send(self, message: Request) -> None:
        """Send a message to the agent. Do nothing if the agent is gone."""
        if self.connection is not None and not self.closed:
            self.connection.write(frame(message))

    def receive(self) -> list[Report]:
        """Return the received messages.

        Set `closed` if the connection has ended. Raises AgentError if data is invalid.
        """
        if self.connection is None:
            return []
        data = self.connection.read()
        messages = self._understand(data) if data else []
        if self.connection.ended:
            self.closed = True
        return messages

    def _understand(self, data: bytes) -> list[Report]:
        self.last_heard = time.monotonic()
        if self._banner is not None:
            self._banner += data
            start = self._banner.find(MAGIC)
            if start < 0:
                if len(self._banner) > BANNER_LIMIT:
                    raise AgentError(f"{BANNER_LIMIT} bytes that are not reports")
                return []
            data, self._banner = bytes(self._banner[start + len(MAGIC) :]), None
        messages = self._reader.feed(data)
        for message in messages:
            if isinstance(message, (Output, Result, Exited, Stopped)) and message.rank not in self.numbers:
                raise AgentError(f"a report about rank {message.rank}, which does not run there")
            if self.facts is None and not isinstance(message, (StreamData, StreamEnd)):
                facts = getattr(message, "facts", None)
                if facts is None:
                    raise AgentError("another report before its Hello")
                self.facts = facts
                self.clock_offset = facts.clock - time.time()
        return messages

    def hang_up(self) -> None:
        """Close the agent's input. The agent then stops the job's processes on its host."""
        if self.connection is not None:
            self.connection.hang_up()

    def end(self, deadline: float) -> int | None:
        """Close the agent's input, wait until `deadline` for it to exit, then kill it.

        Returns:
            Exit code of the agent, or None if it is unknown.
        """
        if self.connection is None:
            return None
        return self.connection.end(deadline)
