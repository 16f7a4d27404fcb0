"""The conversation between launcher and agent: both ends of every message side by side, and their framing.

The agent reads requests on its stdin and writes reports on its stdout, so that the same conversation runs through a
pipe to a child, through ssh, and through another agent. A frame is a length (4 bytes, big-endian) and a msgpack body.
Names, values and commands are bytes, because on POSIX they need not be text.

Reports begin with MAGIC: what a shell prints on another host before the agent runs is skipped up to there.
"""

from __future__ import annotations

import os
import struct
from typing import Any, Generic, TypeVar

import msgspec

from horovod.common.contract.secret import Secret
from horovod.runner.base.errors import AgentError
from horovod.runner.protocol.facts import HostFacts

FRAME_LIMIT = 8 << 20  # no frame is larger, so a broken peer cannot make us allocate more
CHUNK = 1 << 20  # large payloads (functions, results, streams) travel in pieces of this many bytes
MAGIC = b"\0HOROVOD AGENT 1\n"
BANNER_LIMIT = 1 << 16  # bytes before MAGIC that are taken for a shell's greeting
_HEADER = struct.Struct(">I")

_Shown = list[tuple[str, Any]]


def _repr_of_shown(message: Any) -> str:
    """What tracebacks and debuggers may show: no keys, and names of variables without their values."""
    return f"{type(message).__name__}({', '.join(f'{name}={value!r}' for name, value in message.__rich_repr__())})"


class Worker(msgspec.Struct, frozen=True):
    """One process to start: its rank, and the variables that only it gets.

    In a job whose workers come and go, `rank`, here and in all messages, is the number of the process, which no other
    one of the job ever has.
    """

    rank: int
    environment: list[tuple[bytes, bytes]]
    cpus: list[int] = []  # on which it runs; empty: on those of the agent

    def __rich_repr__(self) -> _Shown:
        return [("rank", self.rank), ("environment", [name for name, _ in self.environment])]

    __repr__ = _repr_of_shown


# Requests: launcher -> agent


class Payload(msgspec.Struct, frozen=True, tag="payload"):
    """A piece of the file that every worker of the next StartJob inherits (the function of horovod.run)."""

    data: bytes


class StartJob(msgspec.Struct, frozen=True, tag="start"):
    """Start the workers. `environment` is complete, not added to the agent's; `key` is the job's key."""

    command: list[bytes]
    directory: bytes  # empty: the agent's own
    environment: list[tuple[bytes, bytes]]
    workers: list[Worker]
    key: bytes
    stdin_rank: int = -1  # the rank that gets StdinData; the others, or all with -1, read /dev/null
    results: bool = False  # workers get a result file, and what they leave in it comes back as Result
    relay: bool = False  # workers reach the store through the agent: connections to it come back as StreamOpen
    own_environment: bool = False  # what belongs to a host (HOME, ...) comes from the agent's environment
    whole_environment: bool = False  # and so does everything else that `environment` does not say
    deny: list[str] = []  # but not what matches these
    terminal_rank: int = -1  # the rank whose stdin and stdout are ...
    terminal: bytes = b""  # ... this terminal
    own_python: bool = False  # the command is what follows the agent's own interpreter
    gpus_per_worker: int = 0  # of those that the agent sees, for each worker alone; 0: all workers see all
    gpu_affinity: bool = False  # each worker runs on the CPUs near its GPUs
    lasting: bool = False  # workers come and go, by StartWorker and KillWorker; the job ends by Stop

    def __rich_repr__(self) -> _Shown:
        hidden = {"environment": [name for name, _ in self.environment], "key": Secret(self.key)}
        return [(name, hidden.get(name, getattr(self, name))) for name in self.__struct_fields__]

    __repr__ = _repr_of_shown


class StartWorker(msgspec.Struct, frozen=True, tag="start_worker"):
    """One worker more, of a lasting job; answered with Started, or with Exited when it cannot be."""

    worker: Worker


class KillWorker(msgspec.Struct, frozen=True, tag="kill_worker"):
    """SIGKILL to this worker and all that it has started. It may have ended already."""

    rank: int


class PassOn(msgspec.Struct, frozen=True, tag="pass_on"):
    """A signal that warns of the end, for all processes of the job that catch it; to others it would be the end."""

    signal: int


class StdinData(msgspec.Struct, frozen=True, tag="stdin"):
    """Bytes for the rank that reads stdin; empty: end of file. Sent only after a StdinReady (one piece in flight)."""

    data: bytes


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End everything: SIGTERM now, SIGKILL after `grace` seconds.

    With `first`, a signal, only the ranks get that signal now and have `grace` seconds to end. SIGTERM to everything
    else, and SIGKILL some seconds later, follow when they have ended, or the grace is over.
    """

    grace: float
    first: int = 0


class Watch(msgspec.Struct, frozen=True, tag="watch"):
    """From now on the launcher speaks often: end everything after `limit` seconds without a word from it (0: never),
    and say Alive often as well."""

    limit: float


class Spawn(msgspec.Struct, frozen=True, tag="spawn"):
    """Run a command (ssh to an agent on another host) whose stdin and stdout become the stream of this number."""

    stream: int
    command: list[bytes]


# Reports: agent -> launcher


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The agent's first word."""

    facts: HostFacts


class Started(msgspec.Struct, frozen=True, tag="started"):
    pids: list[tuple[int, int]]  # (rank, pid)


class Output(msgspec.Struct, frozen=True, tag="output"):
    rank: int
    stream: int  # 1 stdout, 2 stderr
    data: bytes


class StdinReady(msgspec.Struct, frozen=True, tag="stdin_ready"):
    """The last piece was taken; `open` False: nobody reads any more."""

    open: bool


class Result(msgspec.Struct, frozen=True, tag="result"):
    rank: int
    data: bytes  # a piece; the pieces of a rank arrive in order and before its Exited


class Said(msgspec.Struct, frozen=True, tag="said"):
    """A worker's report (horovod.common.contract.reasons); those of a rank arrive in order and before its Exited."""

    report: bytes


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """A worker ended. `status`: exit code, or minus the signal; `error`: why it could not be started at all."""

    rank: int
    status: int
    error: str = ""


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """A worker of a lasting job has been stopped by a signal (SIGSTOP); `stopped` False: it runs on."""

    rank: int
    stopped: bool


class Notice(msgspec.Struct, frozen=True, tag="notice"):
    """The agent ends the job by itself, for this reason."""

    text: str


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """Nothing of the job runs any more on this host; `survivors`: processes that even SIGKILL did not end."""

    survivors: list[int] = []


class StreamOpen(msgspec.Struct, frozen=True, tag="open"):
    """A worker has connected to the store's address at this agent."""

    stream: int


# Both ways


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """A word that only says that its sender is there."""


class StreamData(msgspec.Struct, frozen=True, tag="data"):
    """A piece of a stream. `error`: of a spawned command's stderr."""

    stream: int
    data: bytes
    error: bool = False


class StreamEnd(msgspec.Struct, frozen=True, tag="end"):
    """Nothing more comes from this side; `status`: how a spawned command ended; to one that runs, not 0: kill it."""

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
    | Said
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
    """Turns the bytes of a stream into messages of one union type."""

    def __init__(self, kind: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[M]:
        """The messages completed by `data`. Raises AgentError on a frame that is too long or not understood."""
        self._buffer += data
        messages: list[M] = []
        while len(self._buffer) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer)
            if length > FRAME_LIMIT:
                raise AgentError(f"a message of {length} bytes, more than the accepted {FRAME_LIMIT}")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                break
            body = bytes(memoryview(self._buffer)[_HEADER.size : end])
            del self._buffer[:end]
            try:
                messages.append(self._decoder.decode(body))
            except (ValueError, RecursionError) as error:  # not understood, not UTF-8, or nested too deeply
                raise AgentError(f"a message that is not understood: {error}") from None
        return messages


def frame(message: Request | Report) -> bytes:
    """The message as it travels. Raises AgentError when it is larger than a frame may be."""
    body = msgspec.msgpack.encode(message)
    if len(body) > FRAME_LIMIT:
        raise AgentError(f"a {type(message).__name__} message of {len(body)} bytes; at most {FRAME_LIMIT} are accepted")
    return _HEADER.pack(len(body)) + body


class ByteWriter:
    """Queues bytes for a descriptor that never blocks; `flush` writes what fits."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.broken = False  # the reader is gone; everything further is dropped
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """Bytes not yet written."""
        return len(self._buffer)

    def write(self, data: bytes) -> None:
        """Queue the bytes and write what can be written."""
        if not self.broken:
            self._buffer += data
            self.flush()

    def flush(self) -> None:
        """Write as much as the descriptor takes now."""
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
    """The same for messages."""

    def send(self, message: Request | Report) -> None:
        """Queue the message and write what can be written. Raises AgentError when it is larger than a frame may be."""
        if not self.broken:
            self.write(frame(message))
