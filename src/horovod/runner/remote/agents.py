"""Launcher's end of one agent: messages in both directions over its connection."""

from __future__ import annotations

import time
from collections.abc import Sequence

from horovod.runner.base.errors import AgentError
from horovod.runner.plan.hosts import Host, Slot
from horovod.runner.protocol.facts import HostFacts
from horovod.runner.protocol.messages import (
    BANNER_LIMIT,
    MAGIC,
    Exited,
    FrameReader,
    Output,
    Report,
    Request,
    Result,
    Stopped,
    StreamData,
    StreamEnd,
    frame,
)
from horovod.runner.remote.connections import Connection, StreamConnection


class Agent:
    """Agent of one host of the job.

    Attributes:
        slots: Slots of the host's ranks; empty where workers come and go.
        numbers: Ranks, in an elastic job worker numbers, that have ever run there.
        connection: Connection to the agent; None until the fleet opens one.
        facts: Facts about the host, from the agent's Hello.
        clock_offset: Seconds by which the host's clock was ahead at the Hello.
        finished: True once the agent has reported that no process of the job runs there.
        gone: True if the connection has ended or could not be opened.
        lost: True if the host was given up as unreachable or silent.
        notice: Why the agent ends the job on its own initiative.
        ended: (rank, status) of the workers that have ended.
        heard: When the agent was last heard from (monotonic, s).
        since: When the first connection was tried (monotonic, s).
        streams: Connections to other agents through this one, by stream number.
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
        self.gone = False
        self.lost = False
        self.notice = ""
        self.ended: list[tuple[int, int]] = []
        self.heard = time.monotonic()
        self.since = self.heard
        self.streams: dict[int, StreamConnection] = {}
        self._next_stream = 2  # even numbers are the launcher's, odd ones the agent's
        self._reader: FrameReader[Report] = FrameReader(Report)
        self._banner: bytearray | None = bytearray()

    @property
    def ranks(self) -> str:
        """Ranks of the host as text, such as `rank 3` or `ranks 4-7`."""
        numbers = [slot.rank for slot in self.slots]
        return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {numbers[0]}-{numbers[-1]}"

    @property
    def name(self) -> str:
        """Host and ranks as text, such as `host a (ranks 4-7)`, or `host a` where workers come and go."""
        return f"host {self.host} ({self.ranks})" if self.slots else f"host {self.host}"

    @property
    def greeting(self) -> str:
        """Output that preceded the agent's first message, which has not come yet."""
        return (self._banner or b"").decode(errors="replace")

    def attach(self, connection: Connection) -> None:
        """Use a new connection; the message stream begins anew."""
        self.connection = connection
        self.gone = False
        self._reader = FrameReader(Report)
        self._banner = bytearray()

    @property
    def place(self) -> Host:
        """Host as the argument of `Reach.open`."""
        return Host(self.host, len(self.slots), self.python)

    def add_stream(self, connection: StreamConnection) -> int:
        """Return the number of a new stream through this agent, whose data is delivered to `connection`."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        self.streams[stream] = connection
        return stream

    def send(self, message: Request) -> None:
        """Send a message, unless the agent is gone."""
        if self.connection is not None and not self.gone:
            self.connection.write(frame(message))

    def receive(self) -> list[Report]:
        """Return the messages received. Sets `gone` at the end of the stream. Raises AgentError on invalid data."""
        if self.connection is None:
            return []
        data = self.connection.read()
        messages = self._understand(data) if data else []
        if self.connection.ended:
            self.gone = True
        return messages

    def _understand(self, data: bytes) -> list[Report]:
        self.heard = time.monotonic()
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
        """Close the request pipe, which makes the agent end everything."""
        if self.connection is not None:
            self.connection.hang_up()

    def end(self, deadline: float) -> int | None:
        """Hang up, wait until `deadline` for the agent to end, then kill it. Returns its exit code, if known."""
        if self.connection is None:
            return None
        return self.connection.end(deadline)
