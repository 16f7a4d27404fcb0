"""Ranks that did not fail, yet are the reason why others did: they ended too early or never came. The others say so."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# The engine's and the bootstrap's words (core/engine/driver_end.cc, horovod/common/bootstrap.py).
_LEFT = re.compile(r"\brank (\d+) \(host [^)]*\) has left the job(?:: ([^;\n]*))?")
_ABSENT = re.compile(r"\bwaited (\S+ s) for rank (\d+(?:, \d+)*)(?:, \.\.\.)? \(of \d+\) to call hvd\.init\(\)")
_ENDED = "the process ended"


@dataclass(frozen=True)
class Accusation:
    """`rank` is the reason, and `how`; `others` are reasons just as well."""

    rank: int
    how: str
    others: tuple[int, ...] = ()


def complains_of_absence(exception: Sequence[str]) -> bool:
    """Is this the error of an init that waited for other ranks in vain? `exception`: the lines of its traceback."""
    return bool(exception) and _ABSENT.search("\n".join(exception)) is not None


def find_accusation(exception: Sequence[str]) -> Accusation | None:
    """Whom an exception names as its reason, if it is one that a rank without an error of its own can cause."""
    text = "\n".join(exception)
    absent = _ABSENT.search(text)
    if absent is not None:
        first, *others = (int(rank) for rank in absent[2].split(","))
        return Accusation(first, f"it did not call hvd.init() within {absent[1]}", tuple(others))
    left = _LEFT.search(text)
    if left is None:
        return None
    how = "it ended without an error" if left[2] in (None, _ENDED) else f"it left the job ({left[2]})"
    return Accusation(int(left[1]), f"{how} while others still needed it")
