"""Where the workers' output goes: files per rank, and a queue to the launcher's own output that never blocks."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import time
from collections import deque
from collections.abc import Hashable, Iterator
from pathlib import Path

from horovod.runner.output.bars import ERASE, Place

STREAMS = {1: "stdout", 2: "stderr"}
PIPE_PIECE = 4096  # a pipe or terminal that is ready takes this many bytes without blocking (PIPE_BUF)
FILE_PIECE = 1 << 20
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
STATUS_LIMIT = 1 << 16  # bytes that wait, above which a status line is left out


class RankFileError(OSError):
    """A file of a rank's output cannot be written; the text names it and says why."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(error.errno, error.strerror, str(path))
        self.path = path

    def __str__(self) -> str:
        return f"rank file {self.path}: {self.strerror}"


class RankFiles:
    """DIR/rank.<zero-padded rank>/stdout and stderr, with the bytes of each worker as they came.

    DIR may be a symbolic link. What lies in it others may have prepared: links there are not followed, and only plain
    files are written. Raises RankFileError, an OSError, when a directory or file cannot be made or written.
    """

    def __init__(self, directory: str, size: int) -> None:
        width = len(str(size - 1))
        self._files: dict[tuple[int, int], int] = {}
        self._paths: dict[tuple[int, int], Path] = {}
        top = path = Path(directory)
        try:
            top.mkdir(parents=True, exist_ok=True)
            with _opened(os.open(top, _FOLDER)) as at:
                for rank in range(size):
                    folder = path = top / f"rank.{rank:0{width}}"
                    with _opened(_enter(at, folder.name)) as inside:
                        for stream, name in STREAMS.items():
                            path = folder / name
                            self._files[rank, stream] = _create(inside, name)
                            self._paths[rank, stream] = path
        except OSError as error:
            self.close()
            raise RankFileError(path, error) from None

    def write(self, rank: int, stream: int, data: bytes) -> None:
        """Append. After an error the file has the bytes that fitted."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._files[rank, stream], view) :]
        except OSError as error:
            raise RankFileError(self._paths[rank, stream], error) from None

    def close(self) -> None:
        """Close all files. Some file systems tell only now that they are full."""
        files, self._files = self._files, {}
        failed: RankFileError | None = None
        for key, fd in files.items():
            try:
                os.close(fd)
            except OSError as error:
                failed = failed or RankFileError(self._paths[key], error)
        if failed is not None:
            raise failed


@contextlib.contextmanager
def _opened(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def _enter(at: int, name: str) -> int:
    """The folder of this name in the one that is open, made if need be."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=at)
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
    except NotADirectoryError:
        _refuse_link(at, name)
        raise


def _create(at: int, name: str) -> int:
    """An empty file of this name in the folder."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe without a reader blocks
    try:
        fd = os.open(name, flags, 0o666, dir_fd=at)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            _refuse_link(at, name)
        raise
    try:
        # Looked at by its name: a second name of another file, taken away since it was opened, is not there any more.
        found = os.stat(name, dir_fd=at, follow_symlinks=False)
        mine = os.path.samestat(found, os.fstat(fd)) and stat.S_ISREG(found.st_mode) and found.st_nlink < 2
        if not mine:
            raise OSError(errno.EEXIST, "something else is there; accepted is a plain file that has no other name")
        os.ftruncate(fd, 0)
    except OSError:
        os.close(fd)
        raise
    return fd


def _refuse_link(at: int, name: str) -> None:
    if stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
        raise OSError(errno.ELOOP, "it is a symbolic link, and links in the directory of output files are not followed")


class OutputSink:
    """Where the launcher's output goes: whole lines in one order, kept apart from progress bars."""

    def __init__(self, terminals: set[int], together: bool) -> None:
        """`terminals`: streams that lead to one, or to what takes \\r as one does. `together`: do both streams lead to
        the same place?"""
        out = Place(1 in terminals)
        self._places = {1: out, 2: out if together else Place(2 in terminals)}
        self._terminals = terminals
        self._status = ""
        self.rewrites = False  # does `status` show anything?
        self.pending = 0  # bytes that wait
        self.broken = False  # a reader (say, `head`) has gone away

    def is_terminal(self, stream: int) -> bool:
        """Does the stream lead to a terminal?"""
        return stream in self._terminals

    def put(self, stream: int, data: bytes, source: Hashable = -1) -> None:
        """Take whole lines for stdout (1) or stderr (2). `source` tells the streams of the ranks apart."""
        if data:
            self.status("")
            self._show(stream, self._places[stream].add(data, source, self.rewrites))

    def go_on(self, stream: int, source: Hashable) -> None:
        """What was put there last ended with the first half of a torn \\r\\n; take the other half."""
        self._show(stream, self._places[stream].go_on(source))

    def _show(self, stream: int, data: bytes) -> None:
        if data:
            self._emit(stream, data)

    def end_bars(self) -> None:
        """The ranks have ended: what is said next begins a line, even if nothing of it comes this way."""
        for stream, place in self._places.items():
            self._show(stream, place.end())

    def status(self, text: str) -> None:
        """A line that is rewritten in place, and erased before anything else is shown; empty: none. Not while the
        progress bar of a rank stands there.
        """
        if text == self._status or not self.rewrites:
            return
        if text and (self._places[2].in_bar or self.pending > STATUS_LIMIT):
            return
        erase = ERASE if self._status else b""
        self._emit(2, erase + text[: self._columns() - 1].encode(errors="backslashreplace"))
        self._status = text

    def _columns(self) -> int:
        return 80

    def _emit(self, stream: int, data: bytes) -> None:
        raise NotImplementedError

    def waiting_for(self) -> int | None:
        """The descriptor to poll for POLLOUT, None when there is nothing to write."""
        return None

    def write(self) -> None:
        """Write what can be written without waiting."""

    def close(self) -> None:
        """The job is over."""


def _is_same(one: int, other: int) -> bool:
    """Do two descriptors lead to the same terminal, file or pipe?"""
    if os.isatty(one) and os.isatty(other):
        return True  # by whatever names
    return os.path.samestat(os.fstat(one), os.fstat(other))


class OutputQueue(OutputSink):
    """Bytes on their way to the launcher's own stdout and stderr, in one order, written without ever blocking.

    The descriptors are shared with other programs, so they are not made non-blocking; each piece is as small as a
    descriptor that poll() calls writable is sure to take.
    """

    def __init__(self, stdout: int = 1, stderr: int = 2) -> None:
        self._fds = {1: stdout, 2: stderr}
        super().__init__({n for n, fd in self._fds.items() if os.isatty(fd)}, _is_same(stdout, stderr))
        self.rewrites = self.is_terminal(2) and os.environ.get("TERM", "dumb") != "dumb"
        self._queue: deque[tuple[int, bytearray]] = deque()
        self._pieces = {fd: self._piece(fd) for fd in self._fds.values()}
        self._broken_fds: set[int] = set()

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._fds[2]).columns or 80
        except OSError:
            return 80

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

    def close(self) -> None:
        """What waits is not written any more: an interrupt may have left it written in part."""
        if self._status:
            try:
                os.write(self._fds[2], ERASE)
            except OSError:
                pass

    def _drop(self, fd: int) -> None:
        self.broken = True
        self._broken_fds.add(fd)
        self._queue = deque(entry for entry in self._queue if entry[0] != fd)
        self.pending = sum(len(data) for _, data in self._queue)
