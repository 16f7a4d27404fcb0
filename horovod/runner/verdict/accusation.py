"""Ranks that did not fail, yet are the reason why others did: they left or were lost without an error, or never came.
Pure.

The others say so, by a report (`horovod.common.contract.reasons`). `read` makes one of the words of an exception, for
ranks from which no report comes: those of other launchers, and of containers between agent and worker.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from horovod.common.contract.reasons import Ending

# The engine's and the bootstrap's words (core/engine/driver_end.cc, horovod/common/wiring/waited_in_vain.py).
_LEFT = re.compile(r"\brank (\d+) \(host [^)]*\) has left the job(?:: ([^;\n]*))?")
_LOST = re.compile(r"\brank (\d+) \(host [^)]*\) was lost\b")
_ABSENT = re.compile(r"\bwaited (\S+) s for rank (\d+(?:, \d+)*)(?:, \.\.\.)? \(of \d+\) to call hvd\.init\(\)")
_ENDED = "the process ended"


def read(rank: int, exception: Sequence[str], victim: bool) -> Ending | None:
    """What the exception that ended a rank says of the reason. `exception`: the lines of its traceback; `victim`: it is
    a HorovodInternalError, or comes of one. None: there is no exception."""
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
    """What a rank that has left gave as its reason, by the exception of another."""
    left = _LEFT.search("\n".join(exception))
    return left[2] or "" if left is not None else ""


def describe(accusation: Ending, reason: str, status: int, stopped: bool) -> str:
    """How the rank ended that others accuse. `reason`: why it has left, by its own words; `status`: its exit code, or
    minus the signal; `stopped`: by the launcher."""
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
