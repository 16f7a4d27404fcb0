"""What mpirun prints: whose line it is, and which process it says has failed. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping

from horovod.common.contract.reasons import Ending
from horovod.runner.protocol.messages import Exited
from horovod.runner.verdict import verdict
from horovod.runner.verdict.endings import Endings

# Open MPI's --tag-output is `[1,0]<stdout>: text`, before version 5 `[1,0]<stdout>:text`; Hydra's -l is `[0] text`.
_TAG = re.compile(rb"\[\d+,(\d+)\]<(?:stdout|stderr)>: ?|\[(\d+)\] ")
_END = re.compile(rb"(?<=[\r\n])")
# Hydra puts it before whatever a process writes at once, so also behind the progress bar of another one.
_TAG_BEHIND_BAR = re.compile(rb"(?<=\S)\[(\d+)\] |\[(\d+)\] (?=[\r\n])")
_SIGNAL = re.compile(r"process rank\s+(\d+)\s+with\s+PID\s+\d+\s+on\s+node\s+\S+\s+exited\s+on\s+signal\s+(\d+)")
_LOST = re.compile(r"HorovodInternalError: rank (\d+) \(host \S+, pid (\d+)\) (?:was lost|has left the job)")
_PID = re.compile(r"\bPID (\d+) RUNNING AT\b")
_CODE = re.compile(r"Process name:\s+\[\S+?,\s*(\d+)\]\s+Exit code:\s+(\d+)")


class Lines:
    """Cuts one stream into pieces of known origin."""

    def __init__(self, ranks: Container[int] = range(1 << 30)) -> None:
        """`ranks`: those that there are."""
        self._ranks = ranks
        self._rest = b""
        self._last: int | None = None  # whose the beginning of the current line was
        self._bar = False  # has there been a \\r in it?

    def feed(self, data: bytes) -> Iterator[tuple[int | None, bytes]]:
        """(rank, piece with its end of line); rank None: mpirun itself."""
        *pieces, self._rest = _END.split(self._rest + data)
        for piece in pieces:
            yield from self._whose(piece)

    def finish(self) -> Iterator[tuple[int | None, bytes]]:
        """What is left without an end of line."""
        piece, self._rest = self._rest, b""
        if piece:
            yield from self._whose(piece)

    def _whose(self, piece: bytes) -> Iterator[tuple[int | None, bytes]]:
        tag = _TAG.match(piece)
        if tag and tag[2] and self._bar:  # what a bar shows may begin so
            tag = None
        rank = int(tag[1] or tag[2]) if tag else self._last
        if tag and tag[2]:  # an end of line by itself has one, too
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
        """A state of a progress bar, and what other ranks have written behind it."""
        start = 0
        for tag in _TAG_BEHIND_BAR.finditer(text):
            other = int(tag[1] or tag[2])
            if other in self._ranks:
                if tag.start() > start:
                    yield rank, text[start : tag.start()]
                rank, start = other, tag.end()
        yield rank, text[start:]


def judge(code: int, own: str, tails: Mapping[int, str], endings: Endings) -> verdict.Verdict | None:
    """Who failed first, by what mpirun said itself (`own`), what ranks reported, and for those from which no reports
    come, what they wrote on stderr last (`tails`); None when that cannot be known. `code`: mpirun's exit code.
    """
    if code == 0:
        return None
    reported = {ending.rank: ending for ending in endings.told()}
    blamed = _blamed(code, own, tails, reported, endings.pids)
    first = blamed[0] if blamed is not None else -1
    for rank in sorted({*tails, *reported, first} - {-1}, key=lambda rank: (rank != first, rank)):
        tail = tails.get(rank, "")
        status = blamed[1] if blamed is not None and rank == first else 0
        if status == 0 and (_has_failed(reported.get(rank)) or verdict.find_exception(tail)[0]):
            status = 1
        if status:
            endings.end(Exited(rank, status), tail)
    return verdict.judge(endings.ends)


def _has_failed(ending: Ending | None) -> bool:
    return ending is not None and ending.why != "exit"


def _blamed(
    code: int, own: str, tails: Mapping[int, str], reported: Mapping[int, Ending], pids: Mapping[int, int]
) -> tuple[int, int] | None:
    """(rank, exit code or minus the signal), the surest first: whom mpirun names, unless it only suffers; the first
    that reports an exception of its own; whom others report as lost or gone; whom they name so on stderr."""
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
    """(rank, exit code or minus the signal) of the process that Open MPI's own message blames."""
    found = _SIGNAL.search(text)
    if found:
        return int(found[1]), -int(found[2])
    found = _CODE.search(text)
    return (int(found[1]), int(found[2])) if found else None


def named_by_pid(text: str, ranks: Mapping[int, int]) -> tuple[int, int] | None:
    """The same of Hydra's message, which names the process by its number. `ranks`: by this number."""
    found = _PID.search(text)
    rank = ranks.get(int(found[1])) if found else None
    status = _how_it_ended(text, int(found[1]), 0) if found else 0
    return (rank, status) if rank is not None and status else None


def accused(tails: Iterable[str]) -> tuple[int, int] | None:
    """(rank, pid) of the process that others name as lost or gone in their HorovodInternalError."""
    for tail in tails:
        found = _LOST.search("\n".join(verdict.find_exception(tail)[0][-4:]))
        if found:
            return int(found[1]), int(found[2])
    return None


def _has_own_exception(tail: str) -> bool:
    lines, victim = verdict.find_exception(tail)
    return bool(lines) and not victim


def _how_it_ended(own: str, pid: int, code: int) -> int:
    """What Hydra says of the process with this number: exit code, or minus the signal. `code`: Hydra's own, in which
    signals and exit codes look alike."""
    if found := re.search(r"\(signal (\d+)\)", own):
        # Of another one if that one was killed since others had failed, as a slow one is: then the code tells.
        if f"PID {pid} " in own or int(found[1]) == code:
            return -int(found[1])
    elif f"PID {pid} " in own and (found := re.search(r"EXIT CODE: (\d+)", own)):
        return int(found[1])
    return code
