"""Containment of text colours: no line leaves a colour switched on."""

from __future__ import annotations

import re
from collections.abc import Iterator

# Select Graphic Rendition (ECMA-48, 8.3.117): ESC [ numbers m.
_SGR = re.compile(rb"\x1b\[([0-9;:]{0,256})m")
RESET = b"\x1b[0m"
# What a number switches on, as (from, to, aspect): numbers of the same aspect replace each other.
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
    """Colours that one stream of one rank has left on; switched off at each line's end and on in its next line.

    So no colour of one rank affects the prefix or the lines of another on a terminal.
    """

    def __init__(self) -> None:
        self._on: dict[str, bytes] = {}

    def contain(self, line: bytes) -> bytes:
        """Return the line with earlier lines' colours switched on at its start, and all switched off at its end."""
        if not self._on and b"\x1b[" not in line:
            return line
        text = line.rstrip(b"\r\n")
        before = self.sequence()
        for match in _SGR.finditer(text):
            self.take(match[1])
        return before + text + (RESET if self._on else b"") + line[len(text) :]

    def __bool__(self) -> bool:
        """Return True if a colour is on."""
        return bool(self._on)

    def sequence(self) -> bytes:
        """Return the escape sequence that switches on the current colours."""
        return b"\x1b[" + b";".join(self._on.values()) + b"m" if self._on else b""

    def take(self, parameters: bytes) -> None:
        """Apply the parameters of a sequence, the text between ESC [ and m."""
        for number, text in _codes(parameters):
            if number == 0:
                self._on.clear()
            for aspect in _OFF.get(number, ()):
                self._on.pop(aspect, None)
            for low, high, aspect in _ON:
                if low <= number <= high:
                    self._on[aspect] = text


def _codes(parameters: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (number, complete code) for each code of a sequence; an empty number means 0."""
    parts = parameters.split(b";")
    while parts:
        part = parts.pop(0)
        number = int(part.partition(b":")[0] or 0)
        if number in _EXTENDED and b":" not in part and parts:
            count = {b"5": 2, b"2": 4}.get(parts[0], 1)
            part = b";".join([part, *parts[:count]])
            del parts[:count]
        elif part == b"4:0":  # underline with style none, so off
            number = 24
        yield number, part
