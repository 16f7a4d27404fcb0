"""Names of a timeline's files (rank 0's as the user says, a word more in the others'), and how names are shown."""

import glob
import os
import re


def with_word(path: str, word: str) -> str:
    """Of ``t.json`` and "all": ``t.all.json``."""
    root, suffix = os.path.splitext(path)
    return f"{root}.{word}{suffix}"


def of_rank(path: str, rank: int) -> str:
    """Where that rank writes if rank 0 writes to ``path``."""
    return path if rank == 0 else with_word(path, f"rank{rank}")


def others(path: str) -> list[str]:
    """Those of other ranks that lie beside ``path``, rank 0's, by rank."""
    root, suffix = os.path.splitext(path)
    numbered = []
    for name in glob.glob(f"{glob.escape(root)}.rank*{glob.escape(suffix)}"):
        number = re.fullmatch(r"\.rank(\d+)", name[len(root) : len(name) - len(suffix)])
        if number:
            numbered.append((int(number[1]), name))
    return [name for _, name in sorted(numbered)]


def printable(text: str) -> str:
    """Return the text with escapes for what a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
