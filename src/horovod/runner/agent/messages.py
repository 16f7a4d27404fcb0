"""Messages between the launcher and its agents in both directions, and their encoding as frames.

The agent reads requests from stdin and writes reports to stdout. The same protocol therefore works through a pipe to a
child process, through ssh, and through another agent. A frame consists of a length (4 bytes, big-endian) and a msgpack
body. Names, values and commands are bytes, because they are not necessarily text on POSIX.

Reports begin with MAGIC. The launcher skips all data before MAGIC, such as output of the shell on another host.
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
from horovod.common.contract import kernel
from horovod.common.contract.private_files import Secret
from horovod.common.network.connecting import free_port
from horovod.common.network.interfaces import Interface, scan
from horovod.runner.base.job_result import AgentError
from horovod.runner.plan.settings import WorkerOptions


class HostFacts(msgspec.Struct, frozen=True):
    """Host information that the agent reports before it starts any worker.

    Attributes:
        clock: Time on the host, in seconds since 1970.
        cores: Number of cores that workers on the host can use.
        free_port: TCP port that was not in use, or 0 if unknown.
        visible_devices: CUDA_VISIBLE_DEVICES of the agent, or None. It limits the GPUs of the workers.
    """

    hostname: str
    version: str
    python: str
    clock: float
    cores: int
    interfaces: list[Interface]
    free_port: int = 0
    visible_devices: str | None = None


def gather() -> HostFacts:
    """Gather the current information about this host."""
    return HostFacts(
        hostname=socket.gethostname(),
        version=__version__,
        python=platform.python_version(),
        clock=time.time(),
        cores=kernel.usable_cores(),
        interfaces=_interfaces(),
        free_port=free_port(),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def _interfaces() -> list[Interface]:
    try:
        return scan()
    except OSError:  # A sandbox may forbid listing the interfaces. Ranks that need an interface raise an error later.
        return []


# Maximum size of a frame in bytes, so that a faulty peer cannot cause larger allocations
FRAME_LIMIT = 8 << 20
CHUNK = 1 << 20  # Maximum size in bytes of the chunks in which functions, results and streams are sent
MAGIC = b"\0HOROVOD AGENT 1\n"
BANNER_LIMIT = 1 << 16  # Maximum number of bytes, such as of a login banner, before the agent's first message
_HEADER = struct.Struct(">I")

_Shown = list[tuple[str, Any]]


def _repr_of_shown(message: Any) -> str:
    """Return a representation for tracebacks and debuggers that omits keys and the values of environment variables."""
    return f"{type(message).__name__}({', '.join(f'{name}={value!r}' for name, value in message.__rich_repr__())})"


class Worker(msgspec.Struct, frozen=True):
    """Worker process for an agent to start.

    Attributes:
        rank: Rank of the worker. In elastic jobs, this is the worker's number, which is never reused within the job.
        environment: Environment variables that only this worker gets.
        cpus: CPUs on which the worker runs. If empty, it uses the same CPUs as the agent.
    """

    rank: int
    environment: list[tuple[bytes, bytes]]
    cpus: list[int] = []

    def __rich_repr__(self) -> _Shown:
        return [("rank", self.rank), ("environment", [name for name, _ in self.environment])]

    __repr__ = _repr_of_shown


class Payload(msgspec.Struct, frozen=True, tag="payload"):
    """Chunk of the file that contains the pickled function of `horovod.run`.

    The launcher sends it before StartJob. All workers of the job inherit the file.
    """

    data: bytes


class StartJob(WorkerOptions, frozen=True, tag="start"):
    """Request to start all workers of a job.

    Attributes:
        command: Command that each worker runs.
        directory: Working directory. If empty, the workers use the agent's directory.
        environment: Environment variables of the workers, which replace the agent's variables.
        workers: Workers to start. Empty in an elastic job.
        key: The job's secret key.
        stdin_rank: Rank that gets StdinData, or -1 for none. All other ranks read /dev/null.
        results: True to give each worker a result file, whose contents are sent as Result.
        relay: True to relay the workers' connections to the store. Each connection begins with StreamOpen.
        own_environment: True to take host-specific variables, such as HOME, from the agent's environment.
        terminal_rank: Rank whose stdin and stdout are `terminal`, or -1 for none.
        terminal: Path of the terminal.
        lasting: True for an elastic job, in which StartWorker and KillWorker change the workers until Stop ends the
            job.
    """

    command: list[bytes]
    directory: bytes
    environment: list[tuple[bytes, bytes]]
    workers: list[Worker]
    key: bytes
    stdin_rank: int = -1
    results: bool = False
    relay: bool = False
    own_environment: bool = False
    terminal_rank: int = -1
    terminal: bytes = b""
    lasting: bool = False

    def __rich_repr__(self) -> _Shown:
        hidden = {"environment": [name for name, _ in self.environment], "key": Secret(self.key)}
        return [(name, hidden.get(name, getattr(self, name))) for name in self.__struct_fields__]

    __repr__ = _repr_of_shown


class StartWorker(msgspec.Struct, frozen=True, tag="start_worker"):
    """Request to start another worker of an elastic job.

    The agent answers with Started, or with Exited if the start fails.
    """

    worker: Worker


class KillWorker(msgspec.Struct, frozen=True, tag="kill_worker"):
    """Request to send SIGKILL to a worker and its descendants. The worker might have exited already."""

    rank: int


class PassOn(msgspec.Struct, frozen=True, tag="pass_on"):
    """Request to send a warning signal to every process of the job that handles it.

    Other processes are skipped, because the signal would kill them.
    """

    signal: int


class StdinData(msgspec.Struct, frozen=True, tag="stdin"):
    """Input for the rank that reads stdin.

    Empty data marks the end of the input. The launcher sends one chunk in response to each StdinReady.
    """

    data: bytes


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Request to stop all processes with SIGTERM, followed by SIGKILL after `grace` seconds.

    If `first` is a signal number (not 0), the ranks receive that signal first. All processes then receive SIGTERM after
    `grace` seconds, and SIGKILL a few seconds later.
    """

    grace: float
    first: int = 0


class Watch(msgspec.Struct, frozen=True, tag="watch"):
    """Request to exchange heartbeats with the launcher.

    The agent then sends Alive regularly, and stops the job after `limit` seconds without a message from the launcher. A
    limit of 0 means no limit.
    """

    limit: float


class Spawn(msgspec.Struct, frozen=True, tag="spawn"):
    """Request to run a command, such as ssh to another host. Stream `stream` carries its stdin and stdout."""

    stream: int
    command: list[bytes]


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First message that an agent sends, which describes its host."""

    facts: HostFacts


class Started(msgspec.Struct, frozen=True, tag="started"):
    """Report that workers were started. `pids` contains the rank and pid of each worker."""

    pids: list[tuple[int, int]]


class Output(msgspec.Struct, frozen=True, tag="output"):
    """Chunk of a worker's output. `stream` is 1 for stdout and 2 for stderr."""

    rank: int
    stream: int
    data: bytes


class StdinReady(msgspec.Struct, frozen=True, tag="stdin_ready"):
    """Report that the rank has consumed the last chunk of stdin. `open` is False if the rank no longer reads stdin."""

    open: bool


class Result(msgspec.Struct, frozen=True, tag="result"):
    """Chunk of a worker's result file. All chunks arrive in order, before the worker's Exited message."""

    rank: int
    data: bytes


class WorkerReport(msgspec.Struct, frozen=True, tag="said"):
    """Message that a worker has sent to its agent (`horovod.common.contract.reasons`).

    All messages of a worker arrive in order, before its Exited message.
    """

    report: bytes


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """Report that a worker has exited.

    Attributes:
        rank: Rank of the worker.
        status: Exit code, or the negative signal number.
        error: Why the worker could not be started, or an empty string.
    """

    rank: int
    status: int
    error: str = ""


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """Report that a signal such as SIGSTOP has suspended a worker, or (`stopped` is False) that it is running again."""

    rank: int
    stopped: bool


class Notice(msgspec.Struct, frozen=True, tag="notice"):
    """Report that the agent itself has decided to stop the job. `text` is the reason."""

    text: str


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """Report that all of the job's processes on this host have exited, except `survivors`, which outlived SIGKILL."""

    survivors: list[int] = []


class StreamOpen(msgspec.Struct, frozen=True, tag="open"):
    """Report that a worker has connected to this agent, which relays the connection to the store."""

    stream: int


class Heartbeat(msgspec.Struct, frozen=True, tag="alive"):
    """Heartbeat message that the launcher and its agents exchange."""


class StreamData(msgspec.Struct, frozen=True, tag="data"):
    """Data from a stream. `error` is True if the data comes from the stderr of a command."""

    stream: int
    data: bytes
    error: bool = False


class StreamEnd(msgspec.Struct, frozen=True, tag="end"):
    """End marker of a stream. `status` is the exit status of the command.

    If the launcher sends a `status` other than 0 while the command is running, the agent kills the command.
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
    | Heartbeat
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
    | Heartbeat
    | StreamData
    | StreamEnd
)
M = TypeVar("M")


class FrameReader(Generic[M]):
    """Decoder that converts a byte stream into messages."""

    def __init__(self, kind: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[M]:
        """Return all messages completed by `data`. Raises AgentError if a frame is too long or invalid."""
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
            except (ValueError, RecursionError) as error:  # The frame is invalid, not UTF-8, or nested too deeply.
                raise AgentError(f"a message that is not understood: {error}") from None
        return messages


def frame(message: Request | Report) -> bytes:
    """Encode a message as a frame. Raises AgentError if the frame is too long."""
    body = msgspec.msgpack.encode(message)
    if len(body) > FRAME_LIMIT:
        raise AgentError(f"a {type(message).__name__} message must have at most {FRAME_LIMIT} bytes, got {len(body)}")
    return _HEADER.pack(len(body)) + body


class ByteWriter:
    """Byte queue for writing to a non-blocking descriptor. `flush` writes as many bytes as possible."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.broken = False  # True if the reader has closed the descriptor, so that further bytes are dropped
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """Number of queued bytes that have not been written yet."""
        return len(self._buffer)

    def write(self, data: bytes) -> None:
        """Queue the data, and write as many queued bytes as possible."""
        if not self.broken:
            self._buffer += data
            self.flush()

    def flush(self) -> None:
        """Write as many queued bytes as possible without blocking."""
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
        """Queue a message, and write as much as possible. Raises AgentError if the message is too long."""
        if not self.broken:
            self.write(frame(message))
