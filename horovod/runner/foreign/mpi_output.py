"""What mpirun prints: whose line it is, and which process it says has failed. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from horovod.runner.verdict import verdict

# Open MPI's --tag-output is `[1,0]<stdout>: text`, before version 5 `[1,0]<stdout>:text`; Hydra's -l is `[0] text`.
_TAG = re.compile(rb"\[\d+,(\d+)\]<(?:stdout|stderr)>: ?|\[(\d+)\] ")
_SIGNAL = re.compile(r"process rank\s+(\d+)\s+with\s+PID\s+\d+\s+on\s+node\s+\S+\s+exited\s+on\s+signal\s+(\d+)")
_LOST = re.compile(r"HorovodInternalError: rank (\d+) \(host \S+, pid (\d+)\) (?:was lost|has left the job)")
_CODE = re.compile(r"Process name:\s+\[\S+?,\s*(\d+)\]\s+Exit code:\s+(\d+)")


class Lines:
    """Cuts one stream into pieces of known origin."""

    def __init__(self) -> None:
        self._rest = b""
        self._last: int | None = None  # whose the beginning of the current line was

    def feed(self, data: bytes) -> Iterator[tuple[int | None, bytes]]:
        """(rank, piece with its end of line); rank None: mpirun itself."""
        self._rest += data
        while match := re.search(rb"[\r\n]", self._rest):
            piece, self._rest = self._rest[: match.end()], self._rest[match.end() :]
            yield self._whose(piece)

    def finish(self) -> Iterator[tuple[int | None, bytes]]:
        """What is left without an end of line."""
        piece, self._rest = self._rest, b""
        if piece:
            yield self._whose(piece)

    def _whose(self, piece: bytes) -> tuple[int | None, bytes]:
        tag = _TAG.match(piece)
        rank = int(tag[1] or tag[2]) if tag else self._last
        # A progress bar goes on behind its \\r, and only the line's beginning has a tag.
        self._last = None if piece.endswith(b"\n") else rank
        if (
            tag and tag[2] and rank is not None
        ):  # Hydra tags what a process writes at once, so also an end of line by itself
            piece = re.sub(rb"\[%d\] (?=[\r\n]+$)" % rank, b"", piece)
            tag = _TAG.match(piece)
        return rank, piece[tag.end() :] if tag else piece


def _has_own_exception(tail: str) -> bool:
    lines, victim = verdict.find_exception(tail)
    return bool(lines) and not victim


def named(text: str) -> tuple[int, int] | None:
    """(rank, exit code or minus the signal) of the process that Open MPI's own message blames."""
    found = _SIGNAL.search(text)
    if found:
        return int(found[1]), -int(found[2])
    found = _CODE.search(text)
    return (int(found[1]), int(found[2])) if found else None


def accused(tails: Iterable[str]) -> tuple[int, int] | None:
    """(rank, pid) of the process that others name as lost or gone in their HorovodInternalError."""
    for tail in tails:
        found = _LOST.search("\n".join(verdict.find_exception(tail)[0][-4:]))
        if found:
            return int(found[1]), int(found[2])
    return None


def _how_it_ended(own: str, pid: int, code: int) -> int:
    """What Hydra says of the process with this number: exit code, or minus the signal."""
    if f"PID {pid} " in own:
        if found := re.search(r"\(signal (\d+)\)", own):
            return -int(found[1])
        if found := re.search(r"EXIT CODE: (\d+)", own):
            return int(found[1])
    return code


def judge(code: int, own: str, tails: Mapping[int, str], hosts: Mapping[int, str]) -> verdict.Verdict | None:
    """Who failed first, by what mpirun said itself (`own`) and what ranks wrote on stderr last (`tails`); None when
    that cannot be known. `code`: mpirun's exit code.
    """
    blamed = named(own)
    if blamed is None and not any(_has_own_exception(tail) for tail in tails.values()):
        victim = accused(tails.values())
        blamed = None if victim is None else (victim[0], _how_it_ended(own, victim[1], code))
    order = sorted(tails, key=lambda rank: (blamed is None or rank != blamed[0], rank))
    ends = []
    if blamed is not None and blamed[0] not in tails:
        order.insert(0, blamed[0])
    for rank in order:
        tail = tails.get(rank, "")
        status = blamed[1] if blamed is not None and rank == blamed[0] else 0
        if status == 0 and verdict.find_exception(tail)[0]:
            status = 1
        if status:
            ends.append(verdict.RankEnd(rank, hosts.get(rank, "?"), status, tail))
    return verdict.judge(ends) if code != 0 else None
