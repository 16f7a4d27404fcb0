"""Attribution of a job's failure to the rank that failed first, based on how all ranks exited.

If one worker fails, the collectives of all other workers also fail. Most workers are therefore victims: they exit with
HorovodInternalError, but did not cause the failure. The failure is attributed to the first rank that exited in another
way, or that printed another exception before the job was stopped. If there is no such rank, it is attributed to the
rank that the victims name. Workers report why they exit (`RankEnd.reason`). Without a report, the worker's last stderr
output is used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from horovod.common.contract import reasons
from horovod.common.contract.reasons import Ending
from horovod.runner.attribution import tracebacks
from horovod.runner.attribution.tracebacks import last_lines
from horovod.runner.base.job_result import describe_status

# Patterns for the engine's messages about lost or absent ranks. The messages are in core/engine/driver_end.cc and
# src/horovod/common/bootstrap/errors.py.
_DEPARTED = re.compile(r"\brank (\d+) \(host [^)]*\) has left the job(?:: ([^;\n]*))?")
_LOST = re.compile(r"\brank (\d+) \(host [^)]*\) was lost\b")
_ABSENT = re.compile(r"\bwaited (\S+) s for rank (\d+(?:, \d+)*)(?:, \.\.\.)? \(of \d+\) to call hvd\.init\(\)")
_ENDED = "the process ended"


def read(rank: int, exception: Sequence[str], victim: bool) -> Ending | None:
    """Derive a report from the exception that ended a rank, if the rank itself sent no report.

    Ranks send no reports if a launcher other than horovodrun started them, or if they run in a separate container.

    Args:
        rank: Rank that has exited.
        exception: Lines of the rank's traceback.
        victim: True if the exception is a HorovodInternalError or was caused by one.

    Returns:
        The report, or None if there is no exception.
    """
    if not exception:
        return None
    text = "\n".join(exception)
    if (absent := _ABSENT.search(text)) is not None:
        return Ending(rank, "absent", [int(number) for number in absent[2].split(",")], float(absent[1]))
    if (left := _DEPARTED.search(text)) is not None:
        return Ending(rank, "left", [int(left[1])])
    if victim and (lost := _LOST.search(text)) is not None:
        return Ending(rank, "lost", [int(lost[1])])
    return Ending(rank, "failed" if victim else "own")


def departure_reason(exception: Sequence[str]) -> str:
    """Find out from another rank's exception why a rank left the job. Return an empty string if it gave no reason."""
    left = _DEPARTED.search("\n".join(exception))
    return left[2] or "" if left is not None else ""


def describe(report: Ending, reason: str, status: int, stopped: bool) -> str:
    """Describe the exit of a rank that other ranks name as the cause of their failure.

    Args:
        report: Report in which another rank names this rank.
        reason: Reason for leaving the job that this rank reported.
        status: Exit code of the rank, or the negative signal number.
        stopped: True if the launcher stopped the rank.
    """
    if report.why == "absent":
        return f"it did not call hvd.init() within {report.seconds:g} s"
    if report.why == "left":
        ended = reason.startswith(_ENDED) or not reason
        how = f"it ended without an error{reason[len(_ENDED) :]}" if ended else f"it left the job ({reason})"
        return f"{how} while others still needed it"
    if stopped:
        return (
            "the others lost their connections to it, though its process was still there (one that becomes another "
            "program by exec has left the job)"
        )
    return f"it ended with exit code {status} without leaving the job (as os._exit does), while others still needed it"


TAIL_LIMIT = 1 << 16  # Number of bytes that are kept from the end of each rank's stderr
_SHOWN_LINES = 24
_LAST_LINES = 8
_HEADER = tracebacks.HEADER
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
# Python prints "Exception ignored" for errors in destructors, which do not end the process.
_IGNORED = "Exception ignored"
_THREAD = "Exception in thread"  # Python prints "Exception in thread" if an exception ends only a thread.
_VICTIM = re.compile(r"(?:[\w.]+\.)?HorovodInternalError\b")
# TensorFlow raises UnknownError if a Horovod operation loses its connection to another rank, but also for unrelated
# errors. The error is attributed to Horovod only if its message contains the text _OURS.
_TENSORFLOW_VICTIM = re.compile(r"(?:[\w.]+\.)?UnknownError\b")
_HOROVOD_PREFIX = "Horovod "
# The debugger pdb raises BdbQuit if the user enters `q`, or at the end of its input.
_QUIT_DEBUGGER = ("bdb.BdbQuit", "BdbQuit")
_MORE_LINES = 8  # Maximum number of lines of a message that are kept after a blank line


@dataclass(frozen=True)
class RankEnd:
    """Record of how and why one worker exited.

    Attributes:
        rank: Rank of the worker.
        host: Host of the worker.
        status: Exit code, or a negative signal number.
        tail: Most recent output on stderr.
        stopped: True if the worker exited after the launcher had begun to stop the job.
        tail_at_stop: `tail` when the launcher began to stop the job, or None if the worker had already exited or the
            job was not stopped.
        error: Why the worker could not be started, or an empty string.
        reason: The worker's own report about its exit, sent before the launcher began to stop the job, or None.
        departure: The worker's own reason for leaving the job, or None.
        refused: True if a child process of the worker called hvd.init(), which is an error.
    """

    rank: int
    host: str
    status: int
    tail: str = ""
    stopped: bool = False
    tail_at_stop: str | None = None
    error: str = ""
    reason: Ending | None = None
    departure: str | None = None
    refused: bool = False


@dataclass(frozen=True)
class FirstFailure:
    """Rank that failed first, and the resulting exit code of the job.

    Attributes:
        rank: Rank to which the failure is attributed.
        exit_code: Exit code of the job.
        text: Complete message for the user.
        headline: First part of `text`, without the rank's exception or last lines of output.
        victim: True if the rank itself failed as a consequence of something else.
    """

    rank: int
    exit_code: int
    text: str
    headline: str = ""
    victim: bool = False


def split_lines(text: str) -> list[str]:
    r"""Split text into lines as a terminal shows them. A \r, as progress bars print it, starts a new line."""
    return re.split(r"\r\n|\n|\r", text)


def find_exception(tail: str) -> tuple[list[str], bool]:
    """Find the last traceback in the text.

    Exceptions that Python ignores are skipped. Tracebacks of threads are used only if there are no others.

    Returns:
        Lines of the traceback (empty if there is none), and whether the exception or one chained to it is a
        HorovodInternalError.
    """
    lines = split_lines(tail)
    chains = _find_chains(lines)
    if not chains:
        return [], False
    blocks = [_exception_lines(lines, header) for header in chains[-1]]
    return blocks[-1], any(_is_victim(block) for block in blocks)


def exception_in_brackets(tail: str) -> str:
    """Return the line that names the last exception, enclosed in parentheses, or an empty string if there is none."""
    lines, _ = find_exception(tail)
    named = [line for line in lines[1:] if line[:1].strip()]
    return f" ({named[0][:200]})" if named else ""


def _is_victim(block: Sequence[str]) -> bool:
    name = _exception_name(block)
    return bool(
        _VICTIM.match(name)
        or (_TENSORFLOW_VICTIM.match(name) and any(_HOROVOD_PREFIX in line for line in block[block.index(name) :]))
    )


def _find_chains(lines: Sequence[str]) -> list[list[int]]:
    """Return the line numbers at which tracebacks begin, as one list for each chain of exceptions."""
    chains: list[list[int]] = []
    kinds: list[str] = []
    for index, line in enumerate(lines):
        if not _bare(line).endswith(_HEADER):
            continue
        before = next((above for above in map(_bare, reversed(lines[:index])) if above), "")
        if before in _CHAINED and chains:
            chains[-1].append(index)
        else:
            chains.append([index])
            kinds.append(next((kind for kind in (_IGNORED, _THREAD) if before.startswith(kind)), ""))
    for accepted in ("", _THREAD):
        found = [chain for chain, kind in zip(chains, kinds, strict=True) if kind == accepted]
        if found:
            return found
    return []


def _bare(line: str) -> str:
    """Remove the `|` margin of an exception group from the line."""
    return line.strip(" |+")


def _exception_lines(lines: Sequence[str], header: int) -> list[str]:
    """Return the lines of a traceback, from its header to the end of the exception's message."""
    block = [lines[header]]
    named = False
    for index, line in enumerate(lines[header + 1 :], header + 1):
        if named and (not line.strip() or _ends_message(line)):
            if block[-1].endswith(":") and not line.strip():
                block += _rest_of_message(lines[index:])
            break
        block.append(line)
        named = named or _names(line)
    return block


def _ends_message(line: str) -> bool:
    return line.strip() in _CHAINED or line.startswith((_IGNORED, _THREAD)) or _bare(line).endswith(_HEADER)


def _rest_of_message(lines: Sequence[str]) -> list[str]:
    """Return the rest of an exception's message after a line that ends in a colon and is followed by a blank line.

    TensorFlow formats messages this way. The result omits stack traces, and ends with Horovod's last line if there is
    one.
    """
    end = next((i for i, line in enumerate(lines) if _ends_message(line)), len(lines))
    messages = [line for line in lines[:end] if line.strip() and not line.startswith((" ", "\t"))]
    ours = [i for i, line in enumerate(messages) if line.startswith(_HOROVOD_PREFIX)]
    return messages[: ours[-1] + 1][-_MORE_LINES:] if ours else messages[:_MORE_LINES]


def _exception_name(block: Sequence[str]) -> str:
    for line in block[1:]:
        if line and _names(line):
            return line
    return ""


def _names(line: str) -> bool:
    """Return True if the line may name the exception. Unlike the lines of frames, such a line is not indented."""
    return not line.startswith((" ", "\t")) and not tracebacks.is_marks(line)


def judge(ends: Sequence[RankEnd]) -> FirstFailure | None:
    """Attribute the failure of a job to a rank. `ends` must list the workers in the order in which they exited.

    Returns:
        The attribution, or None if no rank failed.
    """
    own = [end for end in ends if end.status != 0 and not end.stopped]
    late = [end for end in ends if end.status != 0 and end.stopped]
    culprit = _first(own, lambda end: not _suffers(end))
    # A rank that raised the first exception can exit after the ranks that failed because of it. The launcher then stops
    # this rank, so also consider stopped ranks that printed an exception.
    if culprit is None:
        culprit = _first(late, _has_own_exception)
    if culprit is None and (accused := _accused(own, ends)) is not None:
        return accused
    if culprit is None:
        culprit = own[0] if own else None
    if culprit is None:
        return None
    headline, also = _headline(culprit, ends), _also_failed(culprit, ends)
    headline += also
    text = "\n".join([*headline, *_final_exception(culprit, f"the exception of rank {culprit.rank}" if also else "")])
    return FirstFailure(culprit.rank, _exit_code(culprit), text, "\n".join(headline), _suffers(culprit))


def has_culprit(ends: Sequence[RankEnd]) -> bool:
    """Return True if any rank has failed on its own, rather than because of another rank."""
    return any(end.status != 0 and not _suffers(end) for end in ends)


def _reason(end: RankEnd, tail: str | None = None) -> Ending | None:
    """Return the rank's own report about its exit.

    If there is none, derive one from `tail`, or from the rank's stderr if `tail` is None.
    """
    if end.reason is not None:
        return end.reason
    return read(end.rank, *find_exception(end.tail if tail is None else tail))


def _suffers(end: RankEnd) -> bool:
    reason = _reason(end)
    return reason is not None and reason.suffers


def _accused(victims: Sequence[RankEnd], ends: Sequence[RankEnd]) -> FirstFailure | None:
    """Attribute the failure to a rank that other ranks name as the cause, although it exited with 0 or was stopped.

    Return None if there is no such rank.
    """
    for victim in victims:
        reason = _reason(victim)
        if reason is None or not reason.ranks:
            continue
        accused = next((end for end in ends if end.rank == reason.ranks[0]), None)
        if accused is None or (accused.status != 0 and not accused.stopped) or _suffers(accused):
            continue
        exception, _ = find_exception(victim.tail)
        left = departure_reason(exception) if accused.departure is None else accused.departure
        lines = _summary(accused, ends)
        how = describe(reason, left, accused.status, accused.stopped)
        lines.append(f"rank {accused.rank} on host {accused.host} failed first: {how}")
        if reason.ranks[1:]:
            lines.append(f"neither did rank {reasons.rank_ranges(reason.ranks[1:], ', ')}")
        lines += _also_failed(accused, ends)
        text = [*lines, *_final_exception(accused)]
        if exception:
            text.append(f"what rank {victim.rank} on host {victim.host} says:")
            text += ["    " + line for line in exception[exception.index(_exception_name(exception)) :]]
        return FirstFailure(accused.rank, _exit_code(victim), "\n".join(text), "\n".join(lines), victim=True)
    return None


def _first(ends: Sequence[RankEnd], accept: object) -> RankEnd | None:
    assert callable(accept)
    return next((end for end in ends if accept(end)), None)


def _has_own_exception(end: RankEnd) -> bool:
    reason = _reason(end, end.tail_at_stop)
    return reason is not None and reason.why == "own"


def _exit_code(culprit: RankEnd) -> int:
    # Ignore the signal that ended the rank, because the launcher sent it after the rank had failed.
    if culprit.stopped:
        return 1
    return 128 - culprit.status if culprit.status < 0 else culprit.status


def _headline(culprit: RankEnd, ends: Sequence[RankEnd]) -> list[str]:
    lines = _summary(culprit, ends)
    early = [end.rank for end in ends if end is not culprit and end.status == 0 and not end.stopped]
    if early and _suffers(culprit):
        lines.append(
            f"may have exited too early, while others still needed it: rank {reasons.rank_ranges(early, ', ')}"
        )
    if culprit.error:
        lines.append(f"rank {culprit.rank} on host {culprit.host} failed first: {culprit.error}")
        return lines
    how = "it was already exiting when the job was stopped" if culprit.stopped else describe_status(culprit.status)
    lines.append(f"rank {culprit.rank} on host {culprit.host} failed first: {how}")
    if culprit.refused:
        lines.append(
            "a process that it had started, a data loader's worker perhaps, came to hvd.init(), which is for ranks "
            'only: put it below `if __name__ == "__main__":`'
        )
    exception, _ = find_exception(culprit.tail)
    if exception and _exception_name(exception).startswith(_QUIT_DEBUGGER):
        lines.append(
            f"a debugger was quit, or found no terminal: `horovodrun --debug-rank {culprit.rank}` gives this rank one"
        )
    return lines


def _final_exception(culprit: RankEnd, called: str = "") -> list[str]:
    """Return the rank's exception or its last stderr lines, below a heading.

    `called` replaces the words "its exception" in the heading.
    """
    if culprit.error:
        return []
    lines = []
    tail = culprit.tail if culprit.tail_at_stop is None else culprit.tail_at_stop
    exception, _ = find_exception(tail)
    if exception:
        lines.append(f"{called or 'its exception'}:")
        shown = tracebacks.shortened(exception[1:])  # The full traceback is already in the rank's output.
    else:
        shown = last_lines(tail, _LAST_LINES)
        if shown:
            lines.append("its last lines on stderr:")
    if len(shown) > _SHOWN_LINES:
        shown = [*shown[: _SHOWN_LINES // 3], "    ...", *shown[-_SHOWN_LINES + _SHOWN_LINES // 3 :]]
    return lines + ["    " + line for line in shown]


def _summary(culprit: RankEnd, ends: Sequence[RankEnd]) -> list[str]:
    """Summarize the other ranks that exited, and the ranks that the launcher stopped."""
    groups: dict[str, list[int]] = {}
    stopped = []
    for end in ends:
        if end.stopped and not (end.status > 0 and _suffers(end)):
            stopped.append(end.rank)
        elif end is culprit:
            continue
        elif end.status == 0:
            groups.setdefault("exited normally", []).append(end.rank)
        elif _is_consequence(end):
            groups.setdefault("failed with HorovodInternalError as a consequence", []).append(end.rank)
    lines = _joined(groups)
    if stopped:
        lines.append(f"stopped by horovodrun: {reasons.named_ranks(stopped)}")
    return lines


def _also_failed(culprit: RankEnd, ends: Sequence[RankEnd]) -> list[str]:
    """Return lines that describe the ranks that failed independently of the first failure."""
    groups: dict[str, list[int]] = {}
    for end in ends:
        if end is not culprit and end.status != 0 and not end.stopped and not _is_consequence(end):
            groups.setdefault(f"also failed ({end.error or describe_status(end.status)})", []).append(end.rank)
    return _joined(groups)


def _is_consequence(end: RankEnd) -> bool:
    reason = _reason(end)
    return reason is not None and reason.suffers and reason.why != "absent"


def _joined(groups: dict[str, list[int]]) -> list[str]:
    sentence = "; ".join(f"{reasons.named_ranks(ranks)} {what}" for what, ranks in groups.items())
    return [sentence] if sentence else []
