"""Messages between launcher and agent, in both directions, and their framing.

The agent reads requests on its stdin and writes reports on its stdout. So the same protocol works through a pipe to a
child, through ssh, and through another agent. A frame is a length (4 bytes, big-endian) and a msgpack body. Names,
values and commands are bytes, because on POSIX they need not be text.

Reports begin with MAGIC. Everything before it, such as output of a shell on another host, is skipped.
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

# Facts about a host that its agent reports before it starts anything.


class HostFacts(msgspec.Struct, frozen=True):
    """Facts about one host, as its agent sees it. `clock` is the wall-clock time in seconds since 1970."""

    hostname: str
    version: str
    python: str
    clock: float
    cores: int  # number of cores that workers there can use
    interfaces: list[Interface]
    free_port: int = 0  # a TCP port on which nothing listened
    visible_devices: str | None = None  # CUDA_VISIBLE_DEVICES: workers do not get it, but it limits the assigned GPUs


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


FRAME_LIMIT = 8 << 20  # maximum size of a frame, so that a broken peer cannot make us allocate more
CHUNK = 1 << 20  # large payloads (functions, results, streams) are sent in pieces of this many bytes
MAGIC = b"\0HOROVOD AGENT 1\n"
BANNER_LIMIT = 1 << 16  # bytes before MAGIC that are accepted as output of a shell
_HEADER = struct.Struct(">I")

_Shown = list[tuple[str, Any]]


def _repr_of_shown(message: Any) -> str:
    """Return a repr that tracebacks and debuggers may show: no keys, and names of variables without values."""
    return f"{type(message).__name__}({', '.join(f'{name}={value!r}' for name, value in message.__rich_repr__())})"


class Worker(msgspec.Struct, frozen=True):
    """One process to start: its rank, and the variables that only it gets.

    In an elastic job, `rank`, here and in all messages, is the worker's number, which no other process of the job ever
    gets.
    """

    rank: int
    environment: list[tuple[bytes, bytes]]
    cpus: list[int] = []  # CPUs on which it runs; empty: those of the agent

    def __rich_repr__(self) -> _Shown:
        return [("rank", self.rank), ("environment", [name for name, _ in self.environment])]

    __repr__ = _repr_of_shown


# Requests: launcher -> agent


class Payload(msgspec.Struct, frozen=True, tag="payload"):
    """A piece of the file that every worker of the next StartJob inherits (the function of `horovod.run`)."""

    data: bytes


class StartJob(msgspec.Struct, frozen=True, tag="start"):
    """Start the workers. `environment` is complete, not added to the agent's; `key` is the job's key."""

    command: list[bytes]
    directory: bytes  # working directory; empty: the agent's own
    environment: list[tuple[bytes, bytes]]
    workers: list[Worker]
    key: bytes
    stdin_rank: int = -1  # rank that gets StdinData (-1: none); all others read /dev/null
    results: bool = False  # give workers a result file, and send its contents as Result
    relay: bool = False  # relay workers' connections to the store as streams, beginning with StreamOpen
    own_environment: bool = False  # take variables that belong to a host (HOME, ...) from the agent's environment
    whole_environment: bool = False  # take all variables that `environment` lacks from there
    deny: list[str] = []  # patterns of variables that are not taken
    terminal_rank: int = -1  # rank whose stdin and stdout are `terminal`; -1: none
    terminal: bytes = b""
    own_python: bool = False  # the command is the arguments of the agent's own interpreter
    gpus_per_worker: int = 0  # of the agent's visible GPUs, for each worker alone; 0: all workers see all
    gpu_affinity: bool = False  # run each worker on the CPUs near its GPUs
    lasting: bool = False  # workers come and go by StartWorker and KillWorker; the job ends by Stop

    def __rich_repr__(self) -> _Shown:
        hidden = {"environment": [name for name, _ in self.environment], "key": Secret(self.key)}
        return [(name, hidden.get(name, getattr(self, name))) for name in self.__struct_fields__]

    __repr__ = _repr_of_shown


class StartWorker(msgspec.Struct, frozen=True, tag="start_worker"):
    """Start one more worker of a lasting job. Answered with Started, or with Exited on failure."""

    worker: Worker


class KillWorker(msgspec.Struct, frozen=True, tag="kill_worker"):
    """Send SIGKILL to this worker and its descendants. It may have ended already."""

    rank: int


class PassOn(msgspec.Struct, frozen=True, tag="pass_on"):
    """Send a signal that warns of the end to all processes of the job that catch it; it would kill the others."""

    signal: int


class StdinData(msgspec.Struct, frozen=True, tag="stdin"):
    """Bytes for the rank that reads stdin; empty at the end of file. One piece is sent after each StdinReady."""

    data: bytes


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End everything: SIGTERM now, SIGKILL after `grace` seconds.

    If `first` is not 0, only the ranks get this signal now and have `grace` seconds to end. When they have ended or the
    time is over, SIGTERM to all processes follows, and SIGKILL some seconds later.
    """

    grace: float
    first: int = 0


class Watch(msgspec.Struct, frozen=True, tag="watch"):
    """Expect heartbeats: end everything after `limit` seconds without a message from the launcher (0: never).

    The agent also sends Alive regularly.
    """

    limit: float


class Spawn(msgspec.Struct, frozen=True, tag="spawn"):
    """Run a command (ssh to an agent on another host) whose stdin and stdout become the stream of this number."""

    stream: int
    command: list[bytes]


# Reports: agent -> launcher


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First message of the agent."""

    facts: HostFacts


class Started(msgspec.Struct, frozen=True, tag="started"):
    """Workers have been started."""

    pids: list[tuple[int, int]]  # (rank, pid)


class Output(msgspec.Struct, frozen=True, tag="output"):
    """A piece of a worker's output."""

    rank: int
    stream: int  # 1 stdout, 2 stderr
    data: bytes


class StdinReady(msgspec.Struct, frozen=True, tag="stdin_ready"):
    """The last piece of stdin was consumed; `open` is False if the rank does not read any more."""

    open: bool


class Result(msgspec.Struct, frozen=True, tag="result"):
    """A piece of a worker's result file."""

    rank: int
    data: bytes  # a piece; the pieces of a rank arrive in order, before its Exited


class WorkerReport(msgspec.Struct, frozen=True, tag="said"):
    """Report of a worker (`horovod.common.contract.reasons`); a rank's reports arrive in order, before its Exited."""

    report: bytes


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """A worker has ended. `status` is the exit code, or minus the signal; `error` is why it could not be started."""

    rank: int
    status: int
    error: str = ""


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """A worker of a lasting job was stopped by a signal (SIGSTOP), or, if `stopped` is False, continued."""

    rank: int
    stopped: bool


class Notice(msgspec.Struct, frozen=True, tag="notice"):
    """The agent ends the job on its own initiative, for this reason."""

    text: str


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """No process of the job runs on this host any more, except `survivors`, which even SIGKILL did not end."""

    survivors: list[int] = []


class StreamOpen(msgspec.Struct, frozen=True, tag="open"):
    """A worker has connected to the store's address at this agent."""

    stream: int


# In both directions


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """Heartbeat, sent in both directions."""


class StreamData(msgspec.Struct, frozen=True, tag="data"):
    """A piece of a stream. `error` is True for a spawned command's stderr."""

    stream: int
    data: bytes
    error: bool = False


class StreamEnd(msgspec.Struct, frozen=True, tag="end"):
    """End of a stream, with the `status` of a spawned command; any other than 0 sent to a running one kills it."""

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
    """Decoder from a byte stream to messages of one union type."""

    def __init__(self, kind: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[M]:
        """Return the messages completed by `data`. Raises AgentError on a frame that is too long or invalid."""
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
    """Return the encoded message with its length. Raises AgentError when it exceeds the limit."""
    body = msgspec.msgpack.encode(message)
    if len(body) > FRAME_LIMIT:
        raise AgentError(f"a {type(message).__name__} message must have at most {FRAME_LIMIT} bytes, got {len(body)}")
    return _HEADER.pack(len(body)) + body


class ByteWriter:
    """Queue of bytes for a non-blocking descriptor; `flush` writes as many as possible."""

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
        """Queue the message and write as much as possible. Raises AgentError when it exceeds the limit."""
        if not self.broken:
            self.write(frame(message))
