"""What the workers print: whole lines with their rank in front, files per rank, a queue that never blocks."""

from __future__ import annotations

import os
import select
import stat
import time
from collections import deque
from datetime import datetime
from pathlib import Path

STREAMS = {1: "stdout", 2: "stderr"}
LINE_LIMIT = 16 << 20  # a line is held until it is whole; one that gets longer is cut here
PIPE_PIECE = 4096  # a pipe or terminal that is ready takes this many bytes without blocking (PIPE_BUF)
FILE_PIECE = 1 << 20


class LinePrefixer:
    """Cuts one stream of one rank into lines, each ended by \\n or \\r, and puts a prefix before each.

    Only whole lines are given out, so lines of different ranks never mix. Bytes are passed on as they are. A \\r with
    nothing before it, with which progress bars begin, gets no prefix.
    """

    def __init__(
        self, rank: int, stream: int, timestamp: bool = False, prefix: bool = True, host: str | None = None
    ) -> None:
        who = f"{rank}@{host}" if host else f"{rank}"
        self._prefix = f"[{who}]<{STREAMS[stream]}>:".encode() if prefix else b""
        self._timestamp = timestamp
        self._parts: list[bytes] = []
        self._length = 0
        self._after_return = False
        self._held = b""  # a \r with nothing before it, until it is known whether \n follows

    def feed(self, data: bytes) -> bytes:
        """The lines completed by `data`, prefixed; empty when none is."""
        if self._after_return and data.startswith(b"\n"):
            data = data[1:]  # the second half of a \r\n that was torn in two
            self._after_return = False
            lines = [b"\n"] + self._cut(data)
            return lines[0] + self._join(lines[1:])
        return self._join(self._cut(data))

    def _cut(self, data: bytes) -> list[bytes]:
        if not data:
            return []
        self._after_return = False
        data, self._held = self._held + data, b""
        lines = data.splitlines(keepends=True)
        rest = b"" if lines[-1].endswith((b"\n", b"\r")) else lines.pop()
        if lines:
            self._parts.append(lines[0])
            lines[0] = b"".join(self._parts)
            self._parts = []
            self._length = 0
            if lines[-1] == b"\r" and not rest:
                self._held = lines.pop()
            else:
                self._after_return = lines[-1].endswith(b"\r") and not rest
        if rest:
            self._parts.append(rest)
            self._length += len(rest)
            if self._length > LINE_LIMIT:
                lines.append(b"".join(self._parts) + b"\n")
                self._parts = []
                self._length = 0
        return lines

    def _join(self, lines: list[bytes]) -> bytes:
        if not lines:
            return b""
        prefix = self._prefix
        if self._timestamp:
            prefix = datetime.now().isoformat(" ", "milliseconds").encode() + b" " + prefix
        if b"\r" in lines:
            return b"".join(line if line == b"\r" else prefix + line for line in lines)
        return prefix + prefix.join(lines)

    def finish(self) -> bytes:
        """What is left without an end of line, with one added; empty when nothing is."""
        held, self._held = self._held, b""
        if held:
            return held
        rest = b"".join(self._parts)
        self._parts = []
        self._length = 0
        return self._join([rest + b"\n"]) if rest else b""


class RankFiles:
    """DIR/rank.<zero-padded rank>/stdout and stderr, with the bytes of each worker as they came.

    Raises OSError (naming the path) when a directory or file cannot be made.
    """

    def __init__(self, directory: str, size: int) -> None:
        width = len(str(size - 1))
        self._files: dict[tuple[int, int], int] = {}
        for rank in range(size):
            folder = Path(directory) / f"rank.{rank:0{width}}"
            folder.mkdir(parents=True, exist_ok=True)
            for stream, name in STREAMS.items():
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                self._files[rank, stream] = os.open(folder / name, flags, 0o666)

    def write(self, rank: int, stream: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._files[rank, stream], view) :]

    def close(self) -> None:
        for fd in self._files.values():
            os.close(fd)
        self._files = {}


class OutputQueue:
    """Bytes on their way to the launcher's own stdout and stderr, in one order, written without ever blocking.

    The descriptors are shared with other programs, so they are not made non-blocking; each piece is as small as a
    descriptor that poll() calls writable is sure to take.
    """

    def __init__(self, stdout: int = 1, stderr: int = 2) -> None:
        self._fds = {1: stdout, 2: stderr}
        self._queue: deque[tuple[int, bytearray]] = deque()
        self._pieces = {fd: self._piece(fd) for fd in self._fds.values()}
        self._torn_by: int | None = None  # the source whose last line on a terminal ended with \r
        self._terminal = all(os.isatty(fd) for fd in self._fds.values())
        self.pending = 0
        self.broken = False  # a reader (say, `head`) has gone away
        self._broken_fds: set[int] = set()

    @staticmethod
    def _piece(fd: int) -> int:
        return FILE_PIECE if stat.S_ISREG(os.fstat(fd).st_mode) else PIPE_PIECE

    def put(self, stream: int, data: bytes, source: int = -1) -> None:
        """Queue whole lines for stdout (1) or stderr (2). `source` tells the streams of the ranks apart."""
        fd = self._fds[stream]
        if not data or fd in self._broken_fds:
            return
        if self._terminal:  # a line must not begin in the middle of another rank's progress bar
            if self._torn_by is not None and self._torn_by != source:
                data = b"\n" + data
            self._torn_by = source if data.endswith(b"\r") else None
        if self._queue and self._queue[-1][0] == fd:
            self._queue[-1][1].extend(data)
        else:
            self._queue.append((fd, bytearray(data)))
        self.pending += len(data)

    def waiting_for(self) -> int | None:
        """The descriptor to poll for POLLOUT, None when there is nothing to write."""
        return self._queue[0][0] if self._queue else None

    def write(self, budget: float = 0.05) -> None:
        """Write what the descriptors take now, for at most about `budget` seconds."""
        end = time.monotonic() + budget
        while self._queue and time.monotonic() < end:
            fd, data = self._queue[0]
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            if not poll.poll(0):
                return
            try:
                written = os.write(fd, memoryview(data)[: self._pieces[fd]])
            except BlockingIOError:  # somebody else made it non-blocking
                return
            except OSError:
                self._drop(fd)
                continue
            self.pending -= written
            if written == len(data):
                self._queue.popleft()
            else:
                del data[:written]

    def _drop(self, fd: int) -> None:
        self.broken = True
        self._broken_fds.add(fd)
        self._queue = deque(entry for entry in self._queue if entry[0] != fd)
        self.pending = sum(len(data) for _, data in self._queue)
