"""Traceback shortening, which keeps user frames and replaces each run of library frames with one line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from horovod.common.contract.log import library_of

HEADER = "Traceback (most recent call last):"
# Maximum number of user frames to show. If there are more, frames in the middle are omitted.
MAX_LINES = 12
_MAX_LIBRARY_FRAMES = 2  # Number of library frames, the last ones, to show if there are no user frames

# In the traceback of an exception group, each line begins with a margin of `|` characters.
_FRAME = re.compile(r'(?P<margin>[ |]*)File "(?P<path>[^"]+)", line \d+(?P<where>, in .*)?$')
_MARKS = re.compile(r"[ |]*[~^][~^ ]*$")
_REPEATED = re.compile(r"\[Previous line repeated (\d+) more times?\]")


@dataclass(frozen=True)
class _Frame:
    lines: tuple[str, ...]
    margin: str
    # Name of the library that contains the code, or an empty string for the user's code
    library: str
    count: int  # Number of times that the traceback repeats the frame ("Previous line repeated ... more times"), or 1


def is_marks(line: str) -> bool:
    """Return True if the line contains only Python's `^` and `~` markers, which some versions do not indent."""
    return _MARKS.match(line) is not None


def shortened(lines: Sequence[str]) -> list[str]:
    """Remove library frames and code markers from a traceback. Other lines are kept.

    If the traceback has no user frame, its last frames are kept.
    """
    shown: list[str] = []
    frames: list[_Frame] = []
    for item in _items(lines):
        if isinstance(item, _Frame):
            frames.append(item)
            continue
        shown += _show(frames)
        frames = []
        shown.append(item)
    return shown + _show(frames)


def _items(lines: Sequence[str]) -> Iterator[_Frame | str]:
    """Yield each frame of a traceback together with its source lines, and every other line unchanged."""
    index = 0
    while index < len(lines):
        match = _FRAME.match(lines[index])
        if match is None:
            yield lines[index]
            index += 1
            continue
        end = index + 1
        while end < len(lines) and _belongs(lines[end], match["margin"]):
            end += 1
        body = lines[index:end]
        if match["where"] is not None:  # Keep the caret line of a SyntaxError, because it shows the position.
            body = [line for line in body if not is_marks(line)]
        repeated = _REPEATED.search(body[-1])
        count = 1 + int(repeated[1]) if repeated else 1
        yield _Frame(tuple(body), match["margin"], library_of(match["path"]), count)
        index = end


def _belongs(line: str, margin: str) -> bool:
    """Return True if the line belongs to the preceding frame.

    Such lines are code, caret markers or `[Previous line repeated ...]`.
    """
    code = line.startswith(margin + "  ") and _FRAME.match(line) is None
    return code or is_marks(line) or _REPEATED.search(line) is not None


def _show(frames: Sequence[_Frame]) -> list[str]:
    own = [index for index, frame in enumerate(frames) if not frame.library]
    kept = set(own if len(own) <= MAX_LINES else [*own[: MAX_LINES // 3], *own[-(MAX_LINES - MAX_LINES // 3) :]])
    if not own:
        kept = set(range(len(frames))[-_MAX_LIBRARY_FRAMES:])
    lines: list[str] = []
    left: list[_Frame] = []
    for index, frame in enumerate(frames):
        if index in kept:
            lines += [*_elision(left), *frame.lines]
            left = []
        else:
            left.append(frame)
    return lines + _elision(left)


def _elision(frames: Sequence[_Frame]) -> list[str]:
    if not frames:
        return []
    names = dict.fromkeys(frame.library for frame in frames if frame.library)
    count = sum(frame.count for frame in frames)
    where = f" in {', '.join(names)}" if names else ""
    return [f"{frames[0].margin}... {count} frame{'s' if count > 1 else ''}{where} ..."]


_UP = "\x1b[A"
_CONTROL = re.compile("\x1b\\[[0-?]*[ -/]*[@-~]|\x1b][^\x07\x1b]*(?:\x07|\x1b\\\\)|[\x00-\x08\x0b-\x1f\x7f]")


def last_lines(text: str, count: int) -> list[str]:
    """Return the last `count` lines of a rank's output as a terminal shows them, without escape sequences.

    Blank lines are omitted, and only the final state of each progress bar is kept.
    """
    lines: list[str] = []
    again = False
    for line in text.split("\n"):
        states = [state for state in line.split("\r") if _CONTROL.sub("", state).strip()]
        if not states:
            continue
        if again:
            lines.pop()
        # If this line moves the cursor up, as several progress bars do, the next line overwrites it.
        again = line.endswith(_UP)
        lines.append(_CONTROL.sub("", states[-1]).rstrip())
    return lines[-count:]
