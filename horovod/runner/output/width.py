"""How many columns of a terminal characters take."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

# Latin letters and what bars are drawn with: one column each.
_NARROW = re.compile("[ -~\u00a1-\u00ac\u00ae-\u02ff\u2500-\u259f]*")
_NOTHING = {"Mn", "Me", "Cf", "Cc"}  # goes onto the character before it, or is not seen


@lru_cache(maxsize=4096)
def columns_of(character: str) -> int:
    """0, 1 or 2."""
    if character == "\u00ad":  # the soft hyphen, which terminals show
        return 1
    if unicodedata.category(character) in _NOTHING:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cells_of(text: str) -> list[str]:
    """One entry per column: a character with what goes onto it; "" is the right half of a wide one.

    What goes onto a character and comes first is left out.
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
        if at >= 0 and len(cells[at]) < 16:  # else a cell could grow for ever
            cells[at] += character
    return cells


def cut(cells: list[str], columns: int) -> list[str]:
    """What of the cells fits; half a wide character is a space."""
    if len(cells) <= columns:
        return cells
    kept = cells[:columns]
    if kept and not cells[columns]:
        kept[-1] = " "
    return kept
