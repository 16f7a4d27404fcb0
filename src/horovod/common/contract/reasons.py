"""Reports from a rank to the launcher: when it calls ``init``, when it leaves, and why it ends.

The agent of a host passes the path and inode of a named pipe to its workers in HOROVOD_REPORT_PIPE. A report is one
line of JSON, written in a single call, so that reports of several ranks do not mix. The launcher does not depend on
reports, because a report is lost if the pipe is missing or full. The pipe is missing under other launchers (except
mpirun started by `horovodrun --mpi` on one machine), and if the worker and the agent run in different containers.

The module also formats lists of ranks for messages, with consecutive ranks as ranges.
"""

import contextlib
import fcntl
import os
import stat
import sys
import termios
from collections.abc import Collection
from typing import TypeVar

import msgspec

PIPE = "HOROVOD_REPORT_PIPE"
LIMIT = 4096
"""Maximum size of a report in bytes. Up to this size, writes to a pipe are atomic."""
_MAX_RANKS = 64


class Called(msgspec.Struct, frozen=True, tag="called"):
    """Report that a rank has called ``hvd.init()``. If another launcher started the rank, ``pid`` identifies it."""

    rank: int
    pid: int = 0


class Left(msgspec.Struct, frozen=True, tag="left"):
    """Report that a rank is leaving the job in an orderly way, with the reason that it sent to its peers."""

    rank: int
    reason: str


class Ending(msgspec.Struct, frozen=True, tag="ending"):
    """Report that the process is exiting, and why.

    Attributes:
        rank: World rank of the process.
        why: "own": the process raised an exception. "exit": it exited without an exception, for example by sys.exit.
        The
            other values mean that it exits because of other ranks. "lost": the connection to ``ranks`` broke. "left":
            ``ranks`` had left the job. "absent": ``ranks`` did not call ``hvd.init()`` within ``seconds``. "failed": an
            operation failed for an unknown reason.
        ranks: Ranks that caused the exit.
        seconds: Time waited for absent ranks.
    """

    rank: int
    why: str
    ranks: list[int] = []
    seconds: float = 0.0

    @property
    def suffers(self) -> bool:
        """True if other ranks caused this process to exit."""
        return self.why not in ("own", "exit")


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Report that a child process of the rank has called ``hvd.init()``."""

    rank: int


Report = Called | Left | Ending | Refused
E = TypeVar("E", bound=BaseException)
_decoder: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)


def encode(report: Report) -> bytes:
    """Encode a report as one line of JSON, at most LIMIT bytes long."""
    if isinstance(report, Left):
        report = Left(report.rank, report.reason[:256])
    elif isinstance(report, Ending):
        report = msgspec.structs.replace(report, ranks=report.ranks[:_MAX_RANKS])
    return msgspec.json.encode(report) + b"\n"


def decode(line: bytes) -> Report | None:
    """Decode a report from the pipe, to which any process can write. Return None if it is invalid."""
    try:
        return _decoder.decode(line)
    except (ValueError, RecursionError):
        return None


def name_of(path: str, fd: int) -> str:
    """Return the name by which workers identify the pipe: its path in /proc and its inode."""
    return f"{path}:{os.fstat(fd).st_ino}"


class ReportPipe:
    """Worker's end of the pipe through which ranks send reports to the launcher."""

    def __init__(self, name: str) -> None:
        """Open the worker's end of the pipe.

        Args:
            name: Name of the pipe from ``name_of``. Reports are dropped if the name is empty, or if the path refers to
            a different file because this process is in another pid namespace.
        """
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

    def send(self, report: Report) -> None:
        """Write a report, or drop it if the pipe is full."""
        self.write(encode(report))

    def write(self, line: bytes) -> bool:
        """Write at most LIMIT bytes. Return False if the pipe is full."""
        if self._fd < 0:
            return False
        try:
            return os.write(self._fd, line) == len(line)
        except OSError:
            return False

    def waiting(self) -> int:
        """Return the number of bytes in the pipe that the agent has not read yet."""
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
    """Attach the reason to report if this exception ends the process. Return the exception."""
    setattr(error, _EXPLAINED, ending)
    return error


def explanation(error: BaseException) -> Ending | None:
    """Return the reason that ``explained`` has attached to an exception, or None."""
    found = getattr(error, _EXPLAINED, None)
    return found if isinstance(found, Ending) else None


def runs(ranks: Collection[int]) -> list[tuple[int, int]]:
    """Group ranks into runs of consecutive ranks. Return (first, last) of each run, sorted."""
    found: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if found and found[-1][1] == rank - 1:
            found[-1] = (found[-1][0], rank)
        else:
            found.append((rank, rank))
    return found


def rank_ranges(ranks: Collection[int], between: str = ",") -> str:
    """Format sorted ranks as ranges such as ``0-3,7``, separated by ``between``."""
    return between.join(f"{low}" if low == high else f"{low}-{high}" for low, high in runs(ranks))


def named_ranks(ranks: Collection[int], between: str = ", ") -> str:
    """Format ranks as text such as ``rank 5`` or ``ranks 0-3, 7``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {rank_ranges(ranks, between)}"
