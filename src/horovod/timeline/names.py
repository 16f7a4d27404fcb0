"""Names of timeline files. The user names rank 0's file, and other ranks insert a word into that name."""

import glob
import os
import re


def with_word(path: str, word: str) -> str:
    """Insert a word before the path's suffix: ``t.json`` and "all" give ``t.all.json``."""
    root, suffix = os.path.splitext(path)
    return f"{root}.{word}{suffix}"


def of_rank(path: str, rank: int) -> str:
    """Return the path of a rank's file if rank 0 writes to ``path``."""
    return path if rank == 0 else with_word(path, f"rank{rank}")


def others(path: str) -> list[str]:
    """Return the existing files of other ranks beside rank 0's ``path``, by rank."""
    root, suffix = os.path.splitext(path)
    numbered = []
    for name in glob.glob(f"{glob.escape(root)}.rank*{glob.escape(suffix)}"):
        number = re.fullmatch(r"\.rank(\d+)", name[len(root) : len(name) - len(suffix)])
        if number:
            numbered.append((int(number[1]), name))
    return [name for _, name in sorted(numbered)]


def printable(text: str) -> str:
    """Escape unprintable characters in the text, because they could control a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
