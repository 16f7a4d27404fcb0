"""From bytes as they come out of a pipe to whole lines, and from lines with colours to lines that leave none behind."""

from __future__ import annotations

import re
from collections.abc import Iterator

LINE_LIMIT = 16 << 20  # a line is held until it is whole; one that gets longer is cut here


class LineCutter:
    """Cuts one stream of one rank into lines, each ended by \\n or \\r. Bytes are passed on as they are.

    A \\r with nothing before it, with which progress bars begin, is a line of its own.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0
        self._after_return = False
        self._held = b""  # a \r with nothing before it, until it is known whether \n follows

    def feed(self, data: bytes) -> tuple[bool, list[bytes]]:
        """The lines completed by `data`. True with them: the first is the \\n of a \\r\\n that came torn in two."""
        if self._after_return and data.startswith(b"\n"):
            self._after_return = False
            return True, [b"\n", *self._cut(data[1:])]
        return False, self._cut(data)

    def _cut(self, data: bytes) -> list[bytes]:
        if not data:
            return []
        self._after_return = False
        data, self._held = self._held + data, b""
        lines = data.splitlines(keepends=True)
        rest = b"" if lines[-1].endswith((b"\n", b"\r")) else lines.pop()
        if lines:
            self._parts.append(lines[0])
            lines[0] = b"".join(self._parts)
            self._parts = []
            self._length = 0
            if lines[-1] == b"\r" and not rest:
                self._held = lines.pop()
            else:
                self._after_return = lines[-1].endswith(b"\r") and not rest
        if rest:
            self._parts.append(rest)
            self._length += len(rest)
            if self._length > LINE_LIMIT:
                lines.append(b"".join(self._parts) + b"\n")
                self._parts = []
                self._length = 0
        return lines

    def finish(self) -> list[bytes]:
        """What is left without an end of line, with one added; at most one line."""
        rest = b"".join(self._parts)
        held, self._held = self._held, b""
        self._parts = []
        self._length = 0
        if held:
            return [held]
        return [rest + b"\n"] if rest else []


# Select Graphic Rendition (ECMA-48, 8.3.117): ESC [ numbers m.
_SGR = re.compile(rb"\x1b\[([0-9;:]*)m")
_RESET = b"\x1b[0m"
# What a number switches on, as (from, to, aspect): two numbers of an aspect replace each other.
_ON = (
    (1, 1, "bold"),
    (2, 2, "faint"),
    (3, 3, "italic"),
    (4, 4, "underline"),
    (5, 6, "blink"),
    (7, 7, "inverse"),
    (8, 8, "hidden"),
    (9, 9, "strike"),
    (21, 21, "underline"),
    (30, 38, "colour"),
    (40, 48, "background"),
    (58, 58, "underline colour"),
    (90, 97, "colour"),
    (100, 107, "background"),
)
_OFF = {
    22: ("bold", "faint"),
    23: ("italic",),
    24: ("underline",),
    25: ("blink",),
    27: ("inverse",),
    28: ("hidden",),
    29: ("strike",),
    39: ("colour",),
    49: ("background",),
    59: ("underline colour",),
}
_EXTENDED = {38, 48, 58}  # followed by 5;index or 2;red;green;blue


class Colours:
    """The colours that one stream of one rank has left on: switched off at the end of each line, on again in its next.

    So on a terminal no colour of one rank reaches the prefix or the lines of another.
    """

    def __init__(self) -> None:
        self._on: dict[str, bytes] = {}

    def contain(self, line: bytes) -> bytes:
        """The line with what earlier ones left on in front of its text, and switched off before its end."""
        if not self._on and b"\x1b[" not in line:
            return line
        text = line.rstrip(b"\r\n")
        before = self._sequence()
        for match in _SGR.finditer(text):
            self._take(match[1])
        return before + text + (_RESET if self._on else b"") + line[len(text) :]

    def _sequence(self) -> bytes:
        return b"\x1b[" + b";".join(self._on.values()) + b"m" if self._on else b""

    def _take(self, parameters: bytes) -> None:
        for number, text in _codes(parameters):
            if number == 0:
                self._on.clear()
            for aspect in _OFF.get(number, ()):
                self._on.pop(aspect, None)
            for low, high, aspect in _ON:
                if low <= number <= high:
                    self._on[aspect] = text


def _codes(parameters: bytes) -> Iterator[tuple[int, bytes]]:
    """(number, all that belongs to it) for each code of a sequence; an empty number means 0."""
    parts = parameters.split(b";")
    while parts:
        part = parts.pop(0)
        number = int(part.partition(b":")[0] or 0)
        if number in _EXTENDED and b":" not in part and parts:
            count = {b"5": 2, b"2": 4}.get(parts[0], 1)
            part = b";".join([part, *parts[:count]])
            del parts[:count]
        elif part == b"4:0":  # underline, style none
            number = 24
        yield number, part
