"""Destinations of the workers' output: a non-blocking queue for stdout and stderr, or Python streams."""

from __future__ import annotations

import codecs
import errno
import os
import select
import stat
import sys
import time
from collections import deque
from collections.abc import Collection
from typing import Any

from horovod.runner.output.bars import Area, Bars, Source

PIPE_PIECE = 4096  # A pipe accepts PIPE_BUF bytes without blocking if poll() reports it as writable.
FILE_PIECE = 1 << 20
# Progress bars are not drawn while more bytes than this are queued.
DRAW_LIMIT = 1 << 16
# Approximate maximum duration of a call to `write` in seconds
WRITE_SECONDS = 0.05
# Seconds for which writing pauses if a terminal is full although poll() reports it as writable
FULL_SECONDS = 0.01
LEAVE_SECONDS = 1.0  # Maximum seconds for which the launcher writes queued bytes before it is suspended


class OutputSink:
    """Destination of the launcher's output: complete lines, with the progress bars and status line below them.

    Attributes:
        pending: Number of queued bytes.
        broken: True if output was lost, because a reader such as `head` has exited or a disk is full.
        trouble: Reason for the lost output, for messages, or an empty string if no output was lost.
        reader_gone: True if output was lost because its reader has exited.
    """

    def __init__(self, terminals: Collection[int], merged: bool, full: bool = False) -> None:
        r"""Create an area for progress bars on each stream that is a terminal.

        Args:
            terminals: Streams that go to a terminal, or to another viewer that handles \r like a terminal.
            merged: True if stdout and stderr go to the same place.
            full: True if the terminals can erase lines and move the cursor up.
        """
        self._terminals = frozenset(terminals)
        areas = {stream: Area(full) for stream in self._terminals}
        if merged and len(areas) == 2:
            areas[1] = areas[2]
        self._areas = areas
        self._each_area = tuple({id(area): area for area in areas.values()}.values())
        self._lent = False
        self.pending = 0
        self.broken = False
        self.trouble = ""
        self.reader_gone = False

    def is_terminal(self, stream: int) -> bool:
        """Return True if the stream goes to a terminal."""
        return stream in self._terminals

    def shows_bars(self, stream: int) -> bool:
        """Return True if the stream can show progress bars."""
        return stream in self._areas and not self._lent

    @property
    def rewrites(self) -> bool:
        """True if the sink can show a status line."""
        return self.shows_bars(2) and self._areas[2].full

    def lend(self) -> None:
        """Stop drawing progress bars, because a rank uses the terminal from now on."""
        self.end_bars()
        self._lent = True

    def put(self, stream: int, data: bytes) -> None:
        """Write whole lines to stdout (1) or stderr (2)."""
        if not data:
            return
        area = self._areas.get(stream)
        if area is not None and area.is_visible:
            self._emit_some(area, area.erase())
        self._emit(stream, data)

    def draw(self, source: Source, bars: Bars) -> None:
        """Set the progress bars of one rank on one stream. Remove the bars if `bars` has no rows."""
        self._areas[bars.stream].draw(source, bars)

    def status(self, text: str) -> None:
        """Set the launcher's status line below all output. An empty string removes the line."""
        if self.rewrites:
            self._areas[2].set_status(text)

    def next_due(self) -> float | None:
        """Return the time at which the caller must call `write` to redraw the progress bars, or None."""
        # A long queue means that the terminal is slow, so do not draw progress bars until the queue has been written.
        if self.pending > DRAW_LIMIT:
            return None
        return min((area.next for area in self._each_area if area.changed), default=None)

    def refresh(self, now: float) -> None:
        """Redraw the progress bars that have changed, if enough time has passed since the last redraw."""
        for area in self._each_area:
            if area.changed and area.next <= now and self.pending <= DRAW_LIMIT:
                self._emit_some(area, area.frame(*self._size(area.stream), now))

    def end_bars(self) -> None:
        """Remove all progress bars, so that further output begins on a new line."""
        for area in self._each_area:
            area.clear()
        self._erase()

    def _erase(self) -> None:
        for area in self._each_area:
            self._emit_some(area, area.erase())

    def _emit_some(self, area: Area, data: bytes) -> None:
        if data:
            self._emit(area.stream, data)

    def typed(self, data: bytes) -> None:
        """Record text that the user typed. The terminal has echoed it below the progress bars, and moved the cursor."""
        if 2 in self._areas:
            self._areas[2].move_down(data.count(b"\n"))

    def _size(self, stream: int) -> tuple[int, int]:
        """Return the size of the terminal as (columns, lines)."""
        return 80, 24

    def _emit(self, stream: int, data: bytes) -> None:
        raise NotImplementedError

    def waiting_for(self) -> int | None:
        """Return the descriptor to poll for POLLOUT, or None if no output is queued."""
        return None

    def write(self) -> None:
        """Write as many queued bytes as possible without blocking."""
        self.refresh(time.monotonic())

    def leave(self) -> None:
        """Restore the terminal before the launcher is suspended."""

    def close(self) -> None:
        """Release the terminal when the job has ended."""


def _is_same(one: int, other: int) -> bool:
    """Return True if both file descriptors refer to the same terminal, file or pipe."""
    if os.isatty(one) and os.isatty(other):
        return True  # Treat any two terminals as the same, because a terminal can have several names.
    return os.path.samestat(os.fstat(one), os.fstat(other))


def _takes(fd: int) -> bool:
    """Return True if a write to the file descriptor would currently not block."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))


def _opened_anew(terminal: int) -> int:
    """Reopen the terminal in non-blocking mode. Return the same descriptor if reopening is forbidden, as after `su`."""
    try:
        return os.open(f"/proc/self/fd/{terminal}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return terminal


class OutputQueue(OutputSink):
    """Queue that writes the launcher's stdout and stderr in order, without blocking.

    Other programs share the file descriptors, so the queue does not make them non-blocking. Instead, it writes chunks
    that are small enough for a pipe that poll() reports as writable. Even a small chunk can block on a terminal, so the
    queue reopens a terminal in non-blocking mode.
    """

    def __init__(self, stdout: int = 1, stderr: int = 2) -> None:
        self._fds = {1: stdout, 2: stderr}
        terminals = {n for n, fd in self._fds.items() if os.isatty(fd)}
        super().__init__(terminals, _is_same(stdout, stderr), full=os.environ.get("TERM", "dumb") != "dumb")
        self._queue: deque[tuple[int, bytearray]] = deque()
        self._pieces = {fd: self._piece(fd) for fd in self._fds.values()}
        self._broken_fds: set[int] = set()
        # Maps a descriptor that other programs share to a private non-blocking one, which is used until `close`.
        self._own: dict[int, int] = {}
        self._inside: int | None = None  # Descriptor to which only a part of a line has been written so far, or None

    def _size(self, stream: int) -> tuple[int, int]:
        """Return the current size of the terminal as (columns, lines), or (80, 24) if unknown."""
        try:
            size = os.get_terminal_size(self._fds[stream])
        except OSError:
            return super()._size(stream)
        return size.columns or 80, size.lines or 24

    @staticmethod
    def _piece(fd: int) -> int:
        return FILE_PIECE if stat.S_ISREG(os.fstat(fd).st_mode) else PIPE_PIECE

    def _emit(self, stream: int, data: bytes) -> None:
        fd = self._fds[stream]
        if fd in self._broken_fds:
            return
        if self._queue and self._queue[-1][0] == fd:
            self._queue[-1][1].extend(data)
        else:
            self._queue.append((fd, bytearray(data)))
        self.pending += len(data)

    def waiting_for(self) -> int | None:
        return self._queue[0][0] if self._queue else None

    def write(self, budget: float = WRITE_SECONDS) -> None:
        """Write as many queued bytes as possible without blocking, for at most about `budget` seconds."""
        super().write()
        self._write_some(time.monotonic() + budget)

    def _write_some(self, end: float) -> None:
        while self._queue and time.monotonic() < end:
            fd, data = self._queue[0]
            if not _takes(fd):
                return
            try:
                written = os.write(self._own_of(fd), memoryview(data)[: self._pieces[fd]])
            # Another program has made the descriptor non-blocking, and its buffer is full. Try again later.
            except BlockingIOError:
                time.sleep(FULL_SECONDS)
                return
            except OSError as error:
                self._drop(fd, error)
                continue
            self.pending -= written
            self._inside = fd if data[written - 1 : written] != b"\n" else None
            if written == len(data):
                self._queue.popleft()
            else:
                del data[:written]

    def _own_of(self, fd: int) -> int:
        if fd not in self._own:
            self._own[fd] = _opened_anew(fd) if os.isatty(fd) else fd
        return self._own[fd]

    def leave(self) -> None:
        """Write the queued bytes before the launcher is suspended."""
        self._erase()
        end = time.monotonic() + LEAVE_SECONDS
        while self._queue and time.monotonic() < end:
            self._write_some(end)
            time.sleep(0.01)

    def close(self) -> None:
        """Erase the progress bars, terminate an incomplete line, and discard the queued bytes."""
        if self._queue and self._inside in self._own and not any(area.is_visible for area in self._each_area):
            self._write_last(self._inside, b"\r\n")
        for area in self._each_area:
            if area.is_visible:
                last = b"\r\n" if self._queue else area.erase()
                area.clear()
                area.erase()
                self._write_last(self._fds[area.stream], last)
        own, self._own = self._own, {}
        for shared, fd in own.items():
            if fd != shared:
                os.close(fd)

    def _write_last(self, fd: int, data: bytes) -> None:
        try:
            if _takes(fd):
                os.write(self._own_of(fd), data)
        except OSError:
            pass

    def _drop(self, fd: int, error: OSError) -> None:
        self.broken = True
        if not self.trouble:
            self.reader_gone = error.errno == errno.EPIPE
            stream = "stdout" if fd == self._fds[1] else "stderr"
            self.trouble = (
                "the reader of the output has closed it (broken pipe)"
                if self.reader_gone
                else f"the output cannot be written to {stream}: {error.strerror}"
            )
        self._broken_fds.add(fd)
        self._queue = deque(entry for entry in self._queue if entry[0] != fd)
        self.pending = sum(len(data) for _, data in self._queue)


class StreamOutput(OutputSink):
    """Output to the current `sys.stdout` and `sys.stderr`, for `horovod.run`.

    In notebooks, under pytest and in `contextlib.redirect_stdout`, these streams are not connected to descriptors 1 and
    2. Text written to the descriptors would appear elsewhere or be lost. Writing to a slow stream blocks the job, as
    `print` does.
    """

    def __init__(self, stdout: Any, stderr: Any) -> None:
        """Store the text streams. Output for a stream that is None is dropped."""
        self._streams = {1: stdout, 2: stderr}
        terminals = {n for n, stream in self._streams.items() if stream is None or _moves_back(stream)}
        super().__init__(terminals, stdout is stderr or terminals == set(self._streams))
        # Decode incrementally, because a multi-byte character can be split between two writes.
        self._decoders = {number: codecs.getincrementaldecoder("utf-8")("replace") for number in self._streams}
        self._last = 0

    def _emit(self, stream: int, data: bytes) -> None:
        target = self._streams[stream]
        if target is None:
            return
        text = self._decoders[stream].decode(data)
        encoding = getattr(target, "encoding", None)
        if isinstance(encoding, str):
            text = text.encode(encoding, "backslashreplace").decode(encoding)
        try:
            # Flush the other stream first. Otherwise, buffering would change the order of lines.
            if self._last not in (0, stream):
                self._flush(self._last)
            self._last = stream
            target.write(text)
        except (OSError, ValueError):  # Python raises ValueError for a stream that was closed.
            self._streams[stream] = None
            self.broken = True

    def _flush(self, stream: int) -> None:
        target = self._streams[stream]
        if target is not None and hasattr(target, "flush"):
            target.flush()

    def close(self) -> None:
        for stream in self._streams:
            try:
                self._flush(stream)
            except (OSError, ValueError):
                self.broken = True


def _moves_back(stream: Any) -> bool:
    """Return True if the stream can redraw progress bars in place, as terminals and notebooks can."""
    if type(stream).__module__.startswith(("ipykernel.", "google.colab.")):
        return True
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


def standard_output() -> OutputSink:
    """Flush `sys.stdout` and `sys.stderr`, and return a sink that writes to them."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    if _is_descriptor(sys.stdout, sys.__stdout__, 1) and _is_descriptor(sys.stderr, sys.__stderr__, 2):
        return OutputQueue()
    return StreamOutput(sys.stdout, sys.stderr)


def _is_descriptor(stream: Any, original: Any, fd: int) -> bool:
    """Return True if the stream is Python's original stream for this file descriptor.

    Checking the `fileno` alone is not enough, because a replacement may return another file's descriptor.
    """
    if stream is None or stream is not original:
        return False
    try:
        os.fstat(fd)
        return bool(stream.fileno() == fd)
    except (OSError, ValueError, AttributeError):
        return False
