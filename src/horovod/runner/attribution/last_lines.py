"""Last lines of a rank's output as a terminal would have shown them: the final state of each progress bar."""

from __future__ import annotations

import re

_UP = "\x1b[A"
_CONTROL = re.compile("\x1b\\[[0-?]*[ -/]*[@-~]|\x1b][^\x07\x1b]*(?:\x07|\x1b\\\\)|[\x00-\x08\x0b-\x1f\x7f]")


def last_lines(text: str, count: int) -> list[str]:
    """Return at most `count` lines that are not blank, without escape sequences."""
    lines: list[str] = []
    again = False  # True if the next line overwrites the last one
    for line in text.split("\n"):
        states = [state for state in line.split("\r") if _CONTROL.sub("", state).strip()]
        if not states:
            continue
        if again:
            lines.pop()
        again = line.endswith(_UP)  # progress bars below each other
        lines.append(_CONTROL.sub("", states[-1]).rstrip())
    return lines[-count:]
