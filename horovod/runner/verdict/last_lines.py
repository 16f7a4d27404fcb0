"""The end of what a rank wrote, as its terminal would have shown it: of a progress bar the last state."""

from __future__ import annotations

import re

_UP = "\x1b[A"
_CONTROL = re.compile("\x1b\\[[0-?]*[ -/]*[@-~]|\x1b][^\x07\x1b]*(?:\x07|\x1b\\\\)|[\x00-\x08\x0b-\x1f\x7f]")


def last_lines(text: str, count: int) -> list[str]:
    """At most so many lines that have something in them, without what would move a cursor or colour anything."""
    lines: list[str] = []
    again = False  # does the next line stand where the last one does?
    for line in text.split("\n"):
        states = [state for state in line.split("\r") if _CONTROL.sub("", state).strip()]
        if not states:
            continue
        if again:
            lines.pop()
        again = line.endswith(_UP)  # bars below each other
        lines.append(_CONTROL.sub("", states[-1]).rstrip())
    return lines[-count:]
