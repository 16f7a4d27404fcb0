"""Messages between launcher and agent, in both directions, and how they are encoded as frames.

The agent reads requests from its stdin and writes reports to its stdout. So the same protocol works through a pipe to a
child process, through ssh, and through another agent. A frame is a length (4 bytes, big-endian) and a msgpack body.
Names, values and commands are bytes, because on POSIX they need not be text.

Reports begin with MAGIC. Everything before it is skipped, such as output of the shell on another host.
"""

from __future__ import annotations

import os
import platform
import socket
import struct
import time
from typing import Any, Generic, TypeVar

import msgspec

from horovod._version import __version__
from horovod.common.contract import cgroups
from horovod.common.contract.private_files import Secret
from horovod.common.network.connecting import free_port
from horovod.common.network.interfaces import Interface, scan
from horovod.runner.base.errors import AgentError
from horovod.runner.plan.worker_options import WorkerOptions

# Facts about a host that its agent reports before it starts any process.


class HostFacts(msgspec.Struct, frozen=True):
    """Facts about one host, as its agent sees it. `clock` is the wall-clock time in seconds since 1970."""

    hostname: str
    version: str
    python: str
    clock: float
    cores: int  # Number of cores that workers on the host can use.
    interfaces: list[Interface]
    free_port: int = 0  # TCP port on which nothing listened; 0 if unknown.
    # CUDA_VISIBLE_DEVICES of the agent. It limits the GPUs to assign, but workers do not get it.
    visible_devices: str | None = None


def gather() -> HostFacts:
    """Return the current facts about this host."""
    return HostFacts(
        hostname=socket.gethostname(),
        version=__version__,
        python=platform.python_version(),
        clock=time.time(),
        cores=cgroups.usable_cores(),
        interfaces=_interfaces(),
        free_port=free_port(),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def _interfaces() -> list[Interface]:
    try:
        return scan()
    except OSError:  # a sandbox without netlink; the ranks raise an error if they need it
        return []


FRAME_LIMIT = 8 << 20  # Maximum size of a frame in bytes, so that a broken peer cannot cause larger allocations.
CHUNK = 1 << 20  # Size in bytes of the pieces in which large payloads (functions, results, streams) are sent.
MAGIC = b"\0HOROVOD AGENT 1\n"
BANNER_LIMIT = 1 << 16  # maximum bytes before MAGIC, which are the output of a shell
_HEADER = struct.Struct(">I")

_Shown = list[tuple[str, Any]]


def _repr_of_shown(message: Any) -> str:
    """Return a repr that can appear in tracebacks and debuggers: no keys, and variables without their values."""
    return f"{type(message).__name__}({', '.join(f'{name}={value!r}' for name, value in message.__rich_repr__())})"


class Worker(msgspec.Struct, frozen=True):
    """Process for an agent to start: its rank, and the variables that only this process gets.

    In elastic jobs, `rank` is the worker's number in all messages. Numbers are never reused in a job.
    """

    rank: int
    environment: list[tuple[bytes, bytes]]
    cpus: list[int] = []  # CPUs on which the process runs; empty for those of the agent

    def __rich_repr__(self) -> _Shown:
        return [("rank", self.rank), ("environment", [name for name, _ in self.environment])]

    __repr__ = _repr_of_shown


# Requests from the launcher to an agent


class Payload(msgspec.Struct, frozen=True, tag="payload"):
    """Piece of the file (the function of `horovod.run`) that every worker of the next StartJob inherits."""

    data: bytes


class StartJob(WorkerOptions, frozen=True, tag="start"):
    """Request to start the workers. `environment` replaces the agent's variables; `key` is the job's key."""

    command: list[bytes]
    directory: bytes  # working directory; empty for the agent's own
    environment: list[tuple[bytes, bytes]]
    workers: list[Worker]
    key: bytes
    stdin_rank: int = -1  # Rank that gets StdinData (-1: none). All others read /dev/null.
    results: bool = False  # True to give workers a result file, whose contents are sent as Result.
    relay: bool = False  # True to relay workers' connections to the store as streams, each beginning with StreamOpen.
    # True to take host-specific variables (HOME and others) from the agent's environment.
    own_environment: bool = False
    terminal_rank: int = -1  # Rank whose stdin and stdout are `terminal`; -1 for none.
    terminal: bytes = b""
    lasting: bool = False  # True if workers come and go by StartWorker and KillWorker until Stop ends the job.

    def __rich_repr__(self) -> _Shown:
        hidden = {"environment": [name for name, _ in self.environment], "key": Secret(self.key)}
        return [(name, hidden.get(name, getattr(self, name))) for name in self.__struct_fields__]

    __repr__ = _repr_of_shown


class StartWorker(msgspec.Struct, frozen=True, tag="start_worker"):
    """Request to start one more worker of a lasting job. Answered with Started, or with Exited on failure."""

    worker: Worker


class KillWorker(msgspec.Struct, frozen=True, tag="kill_worker"):
    """Request to send SIGKILL to this worker and its descendants. The worker may have ended already."""

    rank: int


class PassOn(msgspec.Struct, frozen=True, tag="pass_on"):
    """Request to send a signal that warns of the job's end to all processes that handle it.

    Other processes do not get it, because it would kill them.
    """

    signal: int


class StdinData(msgspec.Struct, frozen=True, tag="stdin"):
    """Bytes for the rank that reads stdin; empty at end of file. One piece is sent after each StdinReady."""

    data: bytes


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Request to end all processes: SIGTERM now, and SIGKILL after `grace` seconds.

    If `first` is not 0, only the ranks get this signal now, and they have `grace` seconds to end. Then all processes
    get SIGTERM, and SIGKILL some seconds later.
    """

    grace: float
    first: int = 0


class Watch(msgspec.Struct, frozen=True, tag="watch"):
    """Request to expect heartbeats. The agent ends the job after `limit` seconds without any message (0: never).

    From then on, the agent also sends Alive regularly.
    """

    limit: float


class Spawn(msgspec.Struct, frozen=True, tag="spawn"):
    """Request to run a command (ssh to an agent on another host). Its stdin and stdout become stream `stream`."""

    stream: int
    command: list[bytes]


# Reports from an agent to the launcher


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First message that the agent sends, with facts about its host."""

    facts: HostFacts


class Started(msgspec.Struct, frozen=True, tag="started"):
    """Report that workers have been started."""

    pids: list[tuple[int, int]]  # (rank, pid) of each worker


class Output(msgspec.Struct, frozen=True, tag="output"):
    """Piece of a worker's output."""

    rank: int
    stream: int  # 1 for stdout, 2 for stderr
    data: bytes


class StdinReady(msgspec.Struct, frozen=True, tag="stdin_ready"):
    """Report that the last piece of stdin was consumed. `open` is False if the rank no longer reads stdin."""

    open: bool


class Result(msgspec.Struct, frozen=True, tag="result"):
    """Piece of a worker's result file."""

    rank: int
    data: bytes  # the pieces of a rank's file arrive in order, before its Exited


class WorkerReport(msgspec.Struct, frozen=True, tag="said"):
    """Report that a worker sent (`horovod.common.contract.reasons`).

    A worker's reports arrive in order, before its Exited.
    """

    report: bytes


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """Report that a worker has ended.

    `status` is the exit code or negative signal; `error` says why it could not start.
    """

    rank: int
    status: int
    error: str = ""


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """Report that a signal (SIGSTOP) has stopped a worker. If `stopped` is False, the worker runs again."""

    rank: int
    stopped: bool


class Notice(msgspec.Struct, frozen=True, tag="notice"):
    """Report that the agent ends the job by itself. `reason` says why."""

    text: str


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """Report that no process of the job runs on this host, except `survivors`, which even SIGKILL did not end."""

    survivors: list[int] = []


class StreamOpen(msgspec.Struct, frozen=True, tag="open"):
    """Report that a worker has connected to the store's address at this agent."""

    stream: int


# Messages in both directions


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """Heartbeat that both sides send."""


class StreamData(msgspec.Struct, frozen=True, tag="data"):
    """Piece of a stream. `error` is True for data from a spawned command's stderr."""

    stream: int
    data: bytes
    error: bool = False


class StreamEnd(msgspec.Struct, frozen=True, tag="end"):
    """End of a stream, with the exit `status` of a spawned command.

    If the launcher sends a `status` other than 0 while the command runs, the agent kills the command.
    """

    stream: int
    status: int = 0


Request = (
    Payload
    | StartJob
    | StartWorker
    | KillWorker
    | PassOn
    | StdinData
    | Stop
    | Watch
    | Spawn
    | Alive
    | StreamData
    | StreamEnd
)
Report = (
    Hello
    | Started
    | Output
    | StdinReady
    | Result
    | WorkerReport
    | Exited
    | Stopped
    | Notice
    | Finished
    | StreamOpen
    | Alive
    | StreamData
    | StreamEnd
)
M = TypeVar("M")


class FrameReader(Generic[M]):
    """Decoder that turns a byte stream into messages of one union type."""

    def __init__(self, kind: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[M]:
        """Return the messages that `data` completes. Raises AgentError if a frame is too long or invalid."""
        self._buffer += data
        messages: list[M] = []
        while len(self._buffer) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer)
            if length > FRAME_LIMIT:
                raise AgentError(f"a message must have at most {FRAME_LIMIT} bytes, got {length}")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                break
            body = bytes(memoryview(self._buffer)[_HEADER.size : end])
            del self._buffer[:end]
            try:
                messages.append(self._decoder.decode(body))
            except (ValueError, RecursionError) as error:  # invalid, not UTF-8, or nested too deeply
                raise AgentError(f"a message that is not understood: {error}") from None
        return messages


def frame(message: Request | Report) -> bytes:
    """Return the encoded message with its length. Raises AgentError if it exceeds the limit."""
    body = msgspec.msgpack.encode(message)
    if len(body) > FRAME_LIMIT:
        raise AgentError(f"a {type(message).__name__} message must have at most {FRAME_LIMIT} bytes, got {len(body)}")
    return _HEADER.pack(len(body)) + body


class ByteWriter:
    """Queue of bytes for a non-blocking descriptor. `flush` writes as many bytes as possible."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.broken = False  # True if the reader is gone; all further bytes are dropped
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """Number of bytes not yet written."""
        return len(self._buffer)

    def write(self, data: bytes) -> None:
        """Queue the bytes and write as many as possible."""
        if not self.broken:
            self._buffer += data
            self.flush()

    def flush(self) -> None:
        """Write as many bytes as possible without blocking."""
        while self._buffer and not self.broken:
            try:
                written = os.write(self.fd, memoryview(self._buffer)[:65536])
            except BlockingIOError:
                return
            except OSError:
                self.broken = True
                self._buffer.clear()
                return
            del self._buffer[:written]


class FrameWriter(ByteWriter):
    """Queue of messages for a non-blocking descriptor."""

    def send(self, message: Request | Report) -> None:
        """Queue the message and write as much as possible. Raises AgentError if the message exceeds the limit."""
        if not self.broken:
            self.write(frame(message))
