"""Where the workers' output goes: what is common, and a queue to the launcher's own output that never blocks."""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from collections import deque
from collections.abc import Collection

from horovod.runner.output.area import Area, Bars, Source

PIPE_PIECE = 4096  # a pipe or terminal that is ready takes this many bytes without blocking (PIPE_BUF)
FILE_PIECE = 1 << 20
DRAW_LIMIT = 1 << 16  # bytes that wait, above which nothing is drawn
WRITE_SECONDS = 0.05  # at a time
FULL_SECONDS = 0.01  # until a terminal is tried again that poll() calls writable and that takes nothing
LEAVE_SECONDS = 1.0  # to write what waits before the terminal is somebody else's


class OutputSink:
    """Where the launcher's output goes: whole lines in one order, and below them what still changes."""

    def __init__(self, terminals: Collection[int], together: bool, full: bool = False) -> None:
        """`terminals`: streams that lead to one, or to what takes \\r as one does. `together`: do both streams lead to
        the same place? `full`: can it erase, and move the cursor up?"""
        self._terminals = frozenset(terminals)
        areas = {stream: Area(full) for stream in self._terminals}
        if together and len(areas) == 2:
            areas[1] = areas[2]
        self._areas = areas
        self._each_area = tuple({id(area): area for area in areas.values()}.values())
        self._lent = False
        self.pending = 0  # bytes that wait
        self.broken = False  # what is written goes nowhere: a reader (say, `head`) has gone away, a disk is full
        self.trouble = ""  # why, in words
        self.reader_gone = False  # it is that a reader has gone away

    def is_terminal(self, stream: int) -> bool:
        """Does the stream lead to a terminal?"""
        return stream in self._terminals

    def shows_bars(self, stream: int) -> bool:
        """Is `draw` for this stream?"""
        return stream in self._areas and not self._lent

    @property
    def rewrites(self) -> bool:
        """Does `status` show anything?"""
        return self.shows_bars(2) and self._areas[2].full

    def lend(self) -> None:
        """The terminal is a rank's from now on: nothing is drawn there."""
        self.end_bars()
        self._lent = True

    def put(self, stream: int, data: bytes) -> None:
        """Take whole lines for stdout (1) or stderr (2)."""
        if not data:
            return
        area = self._areas.get(stream)
        if area is not None and area.stands:
            self._emit_some(area, area.erase())
        self._emit(stream, data)

    def draw(self, source: Source, bars: Bars) -> None:
        """What a stream of a rank draws from now on, in place of what it has drawn before; no rows: nothing."""
        self._areas[bars.stream].draw(source, bars)

    def status(self, text: str) -> None:
        """A line of the launcher below everything else; empty: none."""
        if self.rewrites:
            self._areas[2].say(text)

    def next_due(self) -> float | None:
        """When `write` has something to draw; None: nothing has changed."""
        if self.pending > DRAW_LIMIT:  # when that has been written
            return None
        return min((area.next for area in self._each_area if area.changed), default=None)

    def refresh(self, now: float) -> None:
        """Draw what has changed, if its time has come."""
        for area in self._each_area:
            if area.changed and area.next <= now and self.pending <= DRAW_LIMIT:
                self._emit_some(area, area.frame(*self._size(area.stream), now))

    def end_bars(self) -> None:
        """Nothing changes any more: what is said next begins a line, even if nothing of it comes this way."""
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
        """Somebody has typed this, which the terminal has shown behind what is drawn."""
        if 2 in self._areas:
            self._areas[2].move_down(data.count(b"\n"))

    def _size(self, stream: int) -> tuple[int, int]:
        """Columns and lines of the terminal."""
        return 80, 24

    def _emit(self, stream: int, data: bytes) -> None:
        raise NotImplementedError

    def waiting_for(self) -> int | None:
        """The descriptor to poll for POLLOUT, None when there is nothing to write."""
        return None

    def write(self) -> None:
        """Write what can be written without waiting."""
        self.refresh(time.monotonic())

    def leave(self) -> None:
        """The launcher is about to be stopped: the terminal is the shell's for a while."""

    def close(self) -> None:
        """The job is over."""


def _is_same(one: int, other: int) -> bool:
    """Do two descriptors lead to the same terminal, file or pipe?"""
    if os.isatty(one) and os.isatty(other):
        return True  # by whatever names
    return os.path.samestat(os.fstat(one), os.fstat(other))


def _takes(fd: int) -> bool:
    """Does the descriptor take a piece now?"""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))


def _opened_anew(terminal: int) -> int:
    """Writes to it never wait. The descriptor itself where that is not allowed, as after `su`."""
    try:
        return os.open(f"/proc/self/fd/{terminal}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return terminal


class OutputQueue(OutputSink):
    """Bytes on their way to the launcher's own stdout and stderr, in one order, written without ever blocking.

    The descriptors are shared with other programs, so they are not made non-blocking; each piece is as small as a pipe
    that poll() calls writable is sure to take. A terminal is not sure to: it is opened anew, for us alone.
    """

    def __init__(self, stdout: int = 1, stderr: int = 2) -> None:
        self._fds = {1: stdout, 2: stderr}
        terminals = {n for n, fd in self._fds.items() if os.isatty(fd)}
        super().__init__(terminals, _is_same(stdout, stderr), full=os.environ.get("TERM", "dumb") != "dumb")
        self._queue: deque[tuple[int, bytearray]] = deque()
        self._pieces = {fd: self._piece(fd) for fd in self._fds.values()}
        self._broken_fds: set[int] = set()
        self._own: dict[int, int] = {}  # what is written to in place of a terminal's descriptor, until `close`
        self._inside: int | None = None  # which has begun a line

    def _size(self, stream: int) -> tuple[int, int]:
        """Asked for each time: the window may have another size by now. 80 by 24 where nobody knows."""
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
        """The descriptor to poll for POLLOUT, None when there is nothing to write."""
        return self._queue[0][0] if self._queue else None

    def write(self, budget: float = WRITE_SECONDS) -> None:
        """Write what the descriptors take now, for at most about `budget` seconds."""
        super().write()
        self._write_some(time.monotonic() + budget)

    def _write_some(self, end: float) -> None:
        while self._queue and time.monotonic() < end:
            fd, data = self._queue[0]
            if not _takes(fd):
                return
            try:
                written = os.write(self._own_of(fd), memoryview(data)[: self._pieces[fd]])
            except BlockingIOError:  # its room is less than a character takes, or somebody else made it non-blocking
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
        """The launcher is about to be stopped: the terminal is the shell's for a while."""
        self._erase()
        end = time.monotonic() + LEAVE_SECONDS
        while self._queue and time.monotonic() < end:
            self._write_some(end)
            time.sleep(0.01)

    def close(self) -> None:
        """What waits is not written any more: an interrupt may have left it written in part."""
        if self._queue and self._inside in self._own and not any(area.stands for area in self._each_area):
            self._write_last(self._inside, b"\r\n")
        for area in self._each_area:
            if area.stands:
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
                "nobody reads the output any more (broken pipe)"
                if self.reader_gone
                else f"the output cannot be written to {stream}: {error.strerror}"
            )
        self._broken_fds.add(fd)
        self._queue = deque(entry for entry in self._queue if entry[0] != fd)
        self.pending = sum(len(data) for _, data in self._queue)
