"""The launcher's end of one agent: messages in both directions over whatever connection leads there, and its end."""

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
from horovod.runner.reach.connections import Connection, StreamConnection


class Agent:
    """A host of the job. `connection` is None until the fleet has made one. `slots`: of its ranks, none where workers
    come and go."""

    def __init__(self, host: str, slots: Sequence[Slot], *, remote: bool, python: str = "") -> None:
        self.host = host
        self.slots = list(slots)
        self.numbers = {slot.rank for slot in slots}
        """Ranks, in a lasting job numbers of workers, that run there, or have."""
        self.remote = remote
        self.python = python
        self.connection: Connection | None = None
        self.facts: HostFacts | None = None  # set by its Hello
        self.clock_offset = 0.0  # s by which its clock was ahead of ours then
        self.finished = False  # it has said that nothing of the job runs there any more
        self.gone = False  # its connection has ended, or there never was one
        self.lost = False  # given up: unreachable or silent
        self.notice = ""  # why it ends the job by itself
        self.ended: list[tuple[int, int]] = []  # (rank, status) of the workers that have ended
        self.heard = time.monotonic()
        self.since = self.heard  # when the first connection was tried
        self.streams: dict[int, StreamConnection] = {}  # connections to other agents that go through this one
        self._next_stream = 2  # even numbers are ours, odd ones the agent's
        self._reader: FrameReader[Report] = FrameReader(Report)
        self._banner: bytearray | None = bytearray()

    @property
    def ranks(self) -> str:
        """`rank 3` or `ranks 4-7`."""
        numbers = [slot.rank for slot in self.slots]
        return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {numbers[0]}-{numbers[-1]}"

    @property
    def name(self) -> str:
        """`host a (ranks 4-7)`; where its workers come and go, `host a`."""
        return f"host {self.host} ({self.ranks})" if self.slots else f"host {self.host}"

    @property
    def greeting(self) -> str:
        """What came before the first words of an agent that has not said any yet."""
        return (self._banner or b"").decode(errors="replace")

    def attach(self, connection: Connection) -> None:
        """A new connection: the conversation begins from its start."""
        self.connection = connection
        self.gone = False
        self._reader = FrameReader(Report)
        self._banner = bytearray()

    @property
    def place(self) -> Host:
        """What a way to it needs to know."""
        return Host(self.host, len(self.slots), self.python)

    def add_stream(self, connection: StreamConnection) -> int:
        """The number of a new stream through this agent, whose data goes to `connection`."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        self.streams[stream] = connection
        return stream

    def send(self, message: Request) -> None:
        if self.connection is not None and not self.gone:
            self.connection.write(frame(message))

    def receive(self) -> list[Report]:
        """The messages that have arrived. Sets `gone` at the end of the stream. Raises AgentError on nonsense."""
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
        """Close the way of requests, on which the agent ends everything."""
        if self.connection is not None:
            self.connection.hang_up()

    def end(self, deadline: float) -> int | None:
        """Hang up, wait until the agent has ended, at most to `deadline`, then kill it. Returns its exit code."""
        if self.connection is None:
            return None
        return self.connection.end(deadline)
