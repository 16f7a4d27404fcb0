"""Parser for mpirun's output. It determines which rank wrote each line, and which process mpirun reports as failed."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping

from horovod.common.contract.reasons import Ending
from horovod.runner.agent.messages import Exited
from horovod.runner.attribution import first_failure
from horovod.runner.attribution.endings import Endings

# Open MPI's --tag-output prints `[1,0]<stdout>: text` (before version 5 without the space), Hydra's -l `[0] text`.
_TAG = re.compile(rb"\[\d+,(\d+)\]<(?:stdout|stderr)>: ?|\[(\d+)\] ")
_END = re.compile(rb"(?<=[\r\n])")
# Hydra prints its tag before each write of a process, so a tag can directly follow another process's progress bar.
_TAG_BEHIND_BAR = re.compile(rb"(?<=\S)\[(\d+)\] |\[(\d+)\] (?=[\r\n])")
_SIGNAL = re.compile(r"process rank\s+(\d+)\s+with\s+PID\s+\d+\s+on\s+node\s+\S+\s+exited\s+on\s+signal\s+(\d+)")
_LOST = re.compile(r"HorovodInternalError: rank (\d+) \(host \S+, pid (\d+)\) (?:was lost|has left the job)")
_PID = re.compile(r"\bPID (\d+) RUNNING AT\b")
_CODE = re.compile(r"Process name:\s+\[\S+?,\s*(\d+)\]\s+Exit code:\s+(\d+)")


class Lines:
    """Splitter that assigns the output on one mpirun stream to the individual ranks."""

    def __init__(self, ranks: Container[int] = range(1 << 30)) -> None:
        """Create a splitter. `ranks` contains all valid ranks of the job."""
        self._ranks = ranks
        self._rest = b""
        # Rank that wrote the beginning of the current line, or None
        self._last: int | None = None
        self._bar = False  # True if the current line contains a progress bar

    def feed(self, data: bytes) -> Iterator[tuple[int | None, bytes]]:
        """Yield (rank, line) for each complete line or progress-bar update.

        The rank is None for mpirun's own output.
        """
        *pieces, self._rest = _END.split(self._rest + data)
        for piece in pieces:
            yield from self._whose(piece)

    def finish(self) -> Iterator[tuple[int | None, bytes]]:
        """Yield the remaining output, which does not end with a newline."""
        piece, self._rest = self._rest, b""
        if piece:
            yield from self._whose(piece)

    def _whose(self, piece: bytes) -> Iterator[tuple[int | None, bytes]]:
        tag = _TAG.match(piece)
        if tag and tag[2] and self._bar:  # Inside a progress bar, text such as `[3] ` is not a tag.
            tag = None
        rank = int(tag[1] or tag[2]) if tag else self._last
        if tag and tag[2]:  # Remove the tag that Hydra adds before a newline that was written separately.
            piece = re.sub(rb"(?<!^)\[%d\] (?=[\r\n]+$)" % int(tag[2]), b"", piece)
        text = piece[tag.end() :] if tag else piece
        if self._bar and rank is not None:
            for part in self._parts(rank, text):
                rank = part[0]
                yield part
        else:
            yield rank, text
        ended = piece.endswith(b"\n")
        self._bar = not ended
        self._last = None if ended else rank

    def _parts(self, rank: int, text: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the state of a progress bar, followed by the output that other ranks wrote after it."""
        start = 0
        for tag in _TAG_BEHIND_BAR.finditer(text):
            other = int(tag[1] or tag[2])
            if other in self._ranks:
                if tag.start() > start:
                    yield rank, text[start : tag.start()]
                rank, start = other, tag.end()
        yield rank, text[start:]


def judge(code: int, own: str, tails: Mapping[int, str], endings: Endings) -> first_failure.FirstFailure | None:
    """Determine which rank caused the failure of a job run by mpirun.

    Args:
        code: Exit code of mpirun.
        own: Output of mpirun itself.
        tails: Last stderr output of each rank. It is used for ranks that sent no report.
        endings: Reports of the ranks.

    Returns:
        The rank that caused the failure and a description, or None if mpirun succeeded or the rank is unknown.
    """
    if code == 0:
        return None
    reported = {ending.rank: ending for ending in endings.reports()}
    blamed = _blamed(code, own, tails, reported, endings.pids)
    first = blamed[0] if blamed is not None else -1
    for rank in sorted({*tails, *reported, first} - {-1}, key=lambda rank: (rank != first, rank)):
        tail = tails.get(rank, "")
        status = blamed[1] if blamed is not None and rank == first else 0
        if status == 0 and (_has_failed(reported.get(rank)) or first_failure.find_exception(tail)[0]):
            status = 1
        if status:
            endings.end(Exited(rank, status), tail)
    return first_failure.judge(endings.ends)


def _has_failed(ending: Ending | None) -> bool:
    return ending is not None and ending.why != "exit"


def _blamed(
    code: int, own: str, tails: Mapping[int, str], reported: Mapping[int, Ending], pids: Mapping[int, int]
) -> tuple[int, int] | None:
    """Return the failed rank and its exit code or negative signal number. Return None if they are unknown.

    The most reliable source is the rank that mpirun names, unless this rank failed because of another one. The next
    source is the first rank that reports its own exception. The last sources are ranks that others report as lost.
    """
    named_one = named(own) or named_by_pid(own, {pid: rank for rank, pid in pids.items()})
    if named_one is not None and not (named_one[0] in reported and reported[named_one[0]].suffers):
        return named_one
    for ending in reported.values():
        if ending.why == "own":
            return ending.rank, 1
    for ending in reported.values():
        if ending.ranks and ending.ranks[0] not in reported:
            return ending.ranks[0], _how_it_ended(own, pids.get(ending.ranks[0], 0), code)
    if named_one is not None:
        return named_one
    if any(_has_own_exception(tail) for tail in tails.values()):
        return None
    victim = accused(tails.values())
    return None if victim is None else (victim[0], _how_it_ended(own, victim[1], code))


def named(text: str) -> tuple[int, int] | None:
    """Parse the failed rank, and its exit code or negative signal number, from Open MPI's message."""
    found = _SIGNAL.search(text)
    if found:
        return int(found[1]), -int(found[2])
    found = _CODE.search(text)
    return (int(found[1]), int(found[2])) if found else None


def named_by_pid(text: str, ranks: Mapping[int, int]) -> tuple[int, int] | None:
    """Parse the failed rank, and its exit code or negative signal number, from Hydra's message.

    Hydra's message contains only a pid, which `ranks` maps to a rank.
    """
    found = _PID.search(text)
    rank = ranks.get(int(found[1])) if found else None
    status = _how_it_ended(text, int(found[1]), 0) if found else 0
    return (rank, status) if rank is not None and status else None


def accused(tails: Iterable[str]) -> tuple[int, int] | None:
    """Return (rank, pid) of the process that other ranks name as lost in their HorovodInternalError."""
    for tail in tails:
        found = _LOST.search("\n".join(first_failure.find_exception(tail)[0][-4:]))
        if found:
            return int(found[1]), int(found[2])
    return None


def _has_own_exception(tail: str) -> bool:
    lines, victim = first_failure.find_exception(tail)
    return bool(lines) and not victim


def _how_it_ended(own: str, pid: int, code: int) -> int:
    """Parse the exit code or negative signal number of process `pid` from Hydra's output.

    `own` is Hydra's own output. `code` is Hydra's exit code, which may stand for an exit code or a signal.
    """
    if found := re.search(r"\(signal (\d+)\)", own):
        # After a failure, Hydra can kill another process and report the signal of that process. If so, use `code`.
        if f"PID {pid} " in own or int(found[1]) == code:
            return -int(found[1])
    elif f"PID {pid} " in own and (found := re.search(r"EXIT CODE: (\d+)", own)):
        return int(found[1])
    return code
