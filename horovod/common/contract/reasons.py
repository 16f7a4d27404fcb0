"""What a rank tells the launcher of its part in the job, as data: that it has come, that it leaves, why it ends.

The agent of the host gives its workers the name of a pipe, and its inode, in HOROVOD_REPORT_PIPE; a report is a line of
JSON, written at once, so that the reports of several ranks do not mix. Nobody waits for them: where there is no pipe
(other launchers but mpirun below `horovodrun --mpi` on one machine, a container of its own between agent and worker) or
it is full, the launcher judges without.
"""

import contextlib
import fcntl
import os
import stat
import sys
import termios
from typing import TypeVar

import msgspec

PIPE = "HOROVOD_REPORT_PIPE"
LIMIT = 4096
"""Bytes of a report: what a pipe takes at once, or not at all."""
_MOST_RANKS = 64


class Called(msgspec.Struct, frozen=True, tag="called"):
    """The rank calls hvd.init(). ``pid``: its process's number there; other launchers speak of no more than that."""

    rank: int
    pid: int = 0


class Left(msgspec.Struct, frozen=True, tag="left"):
    """The rank leaves the job in order; ``reason`` is what it tells the others."""

    rank: int
    reason: str


class Ending(msgspec.Struct, frozen=True, tag="ending"):
    """The process ends.

    ``why``: "own": by an exception that is its own; "exit": without any, perhaps by sys.exit. The others are
    consequences: "lost", the connection to ``ranks`` broke; "left", they had left the job; "absent", they did not call
    hvd.init() within ``seconds``; "failed", an operation failed, and no rank is known to be the reason.
    """

    rank: int
    why: str
    ranks: list[int] = []
    seconds: float = 0.0

    @property
    def suffers(self) -> bool:
        """Is something else the reason?"""
        return self.why not in ("own", "exit")


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A process that the rank has started called hvd.init()."""

    rank: int


Report = Called | Left | Ending | Refused
E = TypeVar("E", bound=BaseException)
_decoder: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)


def encode(report: Report) -> bytes:
    """The report as it travels, of at most LIMIT bytes."""
    if isinstance(report, Left):
        report = Left(report.rank, report.reason[:256])
    elif isinstance(report, Ending):
        report = msgspec.structs.replace(report, ranks=report.ranks[:_MOST_RANKS])
    return msgspec.json.encode(report) + b"\n"


def decode(line: bytes) -> Report | None:
    """None for what is no report: whoever has the pipe's name can write to it."""
    try:
        return _decoder.decode(line)
    except (ValueError, RecursionError):
        return None


def name_of(path: str, fd: int) -> str:
    """Of the pipe that has this path below /proc, and this descriptor here."""
    return f"{path}:{os.fstat(fd).st_ino}"


class Teller:
    """The worker's end of the pipe."""

    def __init__(self, name: str) -> None:
        """``name``: the pipe's, as ``name_of`` makes it; empty, or of another file here (in another pid namespace):
        what is told goes nowhere."""
        self._fd = -1
        path, _, inode = name.rpartition(":")
        if not path:
            return
        with contextlib.suppress(OSError, ValueError):
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
            found = os.fstat(fd)
            if stat.S_ISFIFO(found.st_mode) and str(found.st_ino) == inode:
                self._fd = fd
            else:
                os.close(fd)

    def tell(self, report: Report) -> None:
        """Writes the report if there is room."""
        self.write(encode(report))

    def write(self, line: bytes) -> bool:
        """Writes at most LIMIT bytes if there is room for them; has there been?"""
        if self._fd < 0:
            return False
        try:
            return os.write(self._fd, line) == len(line)
        except OSError:
            return False

    def waiting(self) -> int:
        """How many bytes nobody has read yet."""
        if self._fd < 0:
            return 0
        try:
            found = fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4))
        except OSError:
            return 0
        return int.from_bytes(found, sys.byteorder)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


_EXPLAINED = "_horovod_ending"


def explained(error: E, ending: Ending) -> E:
    """The exception, which then says itself why a process ends that it ends."""
    setattr(error, _EXPLAINED, ending)
    return error


def explanation(error: BaseException) -> Ending | None:
    """What ``explained`` has given it."""
    found = getattr(error, _EXPLAINED, None)
    return found if isinstance(found, Ending) else None
