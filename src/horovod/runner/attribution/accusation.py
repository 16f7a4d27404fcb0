"""FirstFailure of failures to ranks that did not fail themselves. Pure.

Such a rank left or was lost without an error, or never called hvd.init(). Other ranks report that
(`horovod.common.contract.reasons`). Where no report arrives, as under other launchers or in containers between agent
and worker, `read` derives one from the text of an exception.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from horovod.common.contract.reasons import Ending

# Messages of the engine and the bootstrap (core/engine/driver_end.cc, src/horovod/common/bootstrap/errors.py).
_LEFT = re.compile(r"\brank (\d+) \(host [^)]*\) has left the job(?:: ([^;\n]*))?")
_LOST = re.compile(r"\brank (\d+) \(host [^)]*\) was lost\b")
_ABSENT = re.compile(r"\bwaited (\S+) s for rank (\d+(?:, \d+)*)(?:, \.\.\.)? \(of \d+\) to call hvd\.init\(\)")
_ENDED = "the process ended"


def read(rank: int, exception: Sequence[str], victim: bool) -> Ending | None:
    """Derive a report from the exception that ended a rank.

    Args:
        rank: Rank that has ended.
        exception: Lines of its traceback.
        victim: True if it is, or was caused by, a HorovodInternalError.

    Returns:
        The report; None without an exception.
    """
    if not exception:
        return None
    text = "\n".join(exception)
    if (absent := _ABSENT.search(text)) is not None:
        return Ending(rank, "absent", [int(number) for number in absent[2].split(",")], float(absent[1]))
    if (left := _LEFT.search(text)) is not None:
        return Ending(rank, "left", [int(left[1])])
    if victim and (lost := _LOST.search(text)) is not None:
        return Ending(rank, "lost", [int(lost[1])])
    return Ending(rank, "failed" if victim else "own")


def why_left(exception: Sequence[str]) -> str:
    """Return the reason that a leaving rank gave, as quoted in another rank's exception; empty if there is none."""
    left = _LEFT.search("\n".join(exception))
    return left[2] or "" if left is not None else ""


def describe(accusation: Ending, reason: str, status: int, stopped: bool) -> str:
    """Return how the rank ended to which others attribute their failure.

    Args:
        accusation: Report of another rank.
        reason: Why the rank left, as it reported itself.
        status: Its exit code, or minus the signal.
        stopped: True if the launcher stopped it.
    """
    if accusation.why == "absent":
        return f"it did not call hvd.init() within {accusation.seconds:g} s"
    if accusation.why == "left":
        ended = reason.startswith(_ENDED) or not reason
        how = f"it ended without an error{reason[len(_ENDED) :]}" if ended else f"it left the job ({reason})"
        return f"{how} while others still needed it"
    if stopped:
        return (
            "the others lost their connections to it, though its process was still there (one that becomes another "
            "program by exec has left the job)"
        )
    return f"it ended with exit code {status} without leaving the job (as os._exit does), while others still needed it"
