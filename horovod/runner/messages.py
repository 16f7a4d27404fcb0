"""The conversation between launcher and agent: both ends of every message side by side, and their framing.

The agent reads requests on its stdin and writes reports on its stdout, so that the same conversation runs through a
pipe to a child and through ssh. A frame is a length (4 bytes, big-endian) and a msgpack body. Names, values and
commands are bytes, because on POSIX they need not be text.
"""

from __future__ import annotations

import os
import struct
from typing import Generic, TypeVar

import msgspec

from horovod.runner.errors import AgentError

FRAME_LIMIT = 8 << 20  # no frame is larger, so a broken peer cannot make us allocate more
CHUNK = 1 << 20  # large payloads (functions, results) travel in pieces of this many bytes
_HEADER = struct.Struct(">I")


class Worker(msgspec.Struct, frozen=True):
    """One process to start: its rank, and the variables that only it gets."""

    rank: int
    environment: list[tuple[bytes, bytes]]


# Requests: launcher -> agent


class Payload(msgspec.Struct, frozen=True, tag="payload"):
    """A piece of the file that every worker of the next StartJob inherits (the function of horovod.run)."""

    data: bytes


class StartJob(msgspec.Struct, frozen=True, tag="start"):
    """Start the workers. `environment` is complete, not added to the agent's; `key` is the job's key."""

    command: list[bytes]
    directory: bytes
    environment: list[tuple[bytes, bytes]]
    workers: list[Worker]
    key: bytes
    stdin_rank: int = -1  # the rank that gets StdinData; the others, or all with -1, read /dev/null
    results: bool = False  # workers get a result file, and what they leave in it comes back as Result


class StdinData(msgspec.Struct, frozen=True, tag="stdin"):
    """Bytes for the rank that reads stdin; empty: end of file. Sent only after a StdinReady (one piece in flight)."""

    data: bytes


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End everything: SIGTERM now, SIGKILL after `grace` seconds."""

    grace: float


# Reports: agent -> launcher


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


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """A worker ended. `status`: exit code, or minus the signal; `error`: why it could not be started at all."""

    rank: int
    status: int
    error: str = ""


class Notice(msgspec.Struct, frozen=True, tag="notice"):
    """The agent ends the job by itself, for this reason."""

    text: str


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """Nothing of the job runs any more on this host; `survivors`: processes that even SIGKILL did not end."""

    survivors: list[int] = []


Request = Payload | StartJob | StdinData | Stop
Report = Started | Output | StdinReady | Result | Exited | Notice | Finished
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
            except msgspec.MsgspecError as error:
                raise AgentError(f"a message that is not understood: {error}") from None
        return messages


class FrameWriter:
    """Queues messages for a descriptor that never blocks; `flush` writes what fits."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.broken = False  # the reader is gone; everything further is dropped
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """Bytes not yet written."""
        return len(self._buffer)

    def send(self, message: Request | Report) -> None:
        """Queue the message and write what can be written. Raises AgentError when it is larger than a frame may be."""
        if self.broken:
            return
        body = self._encoder.encode(message)
        if len(body) > FRAME_LIMIT:
            raise AgentError(
                f"a {type(message).__name__} message of {len(body)} bytes; at most {FRAME_LIMIT} are accepted"
            )
        self._buffer += _HEADER.pack(len(body))
        self._buffer += body
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
