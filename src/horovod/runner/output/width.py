"""Columns that characters occupy on a terminal."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

# Latin letters and the characters of progress bars, which occupy one column each.
_NARROW = re.compile("[ -~\u00a1-\u00ac\u00ae-\u02ff\u2500-\u259f]*")
_NOTHING = {"Mn", "Me", "Cf", "Cc"}  # combining or invisible characters


@lru_cache(maxsize=4096)
def columns_of(character: str) -> int:
    """Return the number of columns: 0, 1 or 2."""
    if character == "\u00ad":  # the soft hyphen, which terminals display
        return 1
    if unicodedata.category(character) in _NOTHING:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cells_of(text: str) -> list[str]:
    """Return one entry per column: a character with its combining ones, or "" for the right half of a wide character.

    Combining characters at the beginning are left out.
    """
    if _NARROW.fullmatch(text):
        return list(text)
    cells: list[str] = []
    for character in text:
        columns = columns_of(character)
        if columns:
            cells += [character, ""][:columns]
            continue
        at = len(cells) - 1
        if at > 0 and not cells[at]:
            at -= 1
        if at >= 0 and len(cells[at]) < 16:  # bounds the size of a cell
            cells[at] += character
    return cells


def cut(cells: list[str], columns: int) -> list[str]:
    """Return the cells that fit; half of a wide character becomes a space."""
    if len(cells) <= columns:
        return cells
    kept = cells[:columns]
    if kept and not cells[columns]:
        kept[-1] = " "
    return kept
