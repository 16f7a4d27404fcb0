"""The last lines of what a rank prints, as text that can be shown. Pure, and bounded whatever comes: a line is cut, a
longer one is never held."""

from __future__ import annotations

import re
from collections import deque
from typing import NamedTuple

CUT = 400  # characters of a line that are kept
_HELD = 4 * CUT  # bytes of a line that is not whole yet
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROLS = dict.fromkeys([*range(9), *range(10, 32), *range(127, 160)])
_NUMBERS = re.compile(r"\B(?=(?:\d{3})+$)")


class Line(NamedTuple):
    """`version`: the state's when it came."""

    version: int
    stream: int
    text: str


def shown(data: bytes, length: int) -> str:
    """A line of `length` bytes of which at most these were kept, without colours and controls."""
    text = _ESCAPES.sub("", data.decode(errors="replace")).translate(_CONTROLS)
    if len(text) <= CUT and length <= len(data):
        return text
    return f"{text[:CUT]} … ({_NUMBERS.sub(',', str(length))} bytes)"


def text(words: str) -> str:
    """The same of what is text already, all in one line."""
    data = words.replace("\n", " ").encode(errors="replace")
    return shown(data[:_HELD], len(data))


class _Open:
    """A line that is not whole yet."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._length = 0
        self._returned = False

    def add(self, piece: bytes) -> None:
        """A carriage return begins the line anew, as on a terminal: bars show their last state."""
        if not piece:
            return
        last = piece.rstrip(b"\r")
        if b"\r" in last:
            last = last[last.rindex(b"\r") + 1 :]
            self._returned = True
        if last and self._returned:
            self._data.clear()
            self._length = 0
            self._returned = False
        self._data += last[: _HELD - len(self._data)]
        self._length += len(last)
        self._returned = self._returned or piece.endswith(b"\r")

    def text(self) -> str:
        return shown(bytes(self._data), self._length)

    def take(self) -> str:
        text = self.text()
        self.__init__()  # type: ignore[misc]
        return text


class Tail:
    """Of one rank, stdout and stderr in the order in which they came."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._open = {1: _Open(), 2: _Open()}
        self.lines: deque[Line] = deque(maxlen=keep)
        self.count = 0
        """Lines that there have been, those that are gone included."""
        self.now = ""
        """What has begun and is no line yet."""

    def feed(self, version: int, stream: int, data: bytes) -> None:
        """Takes what has come; `version`: the state's from now on."""
        begun = self._open[stream]
        *whole, rest = data.split(b"\n")
        skipped = len(whole) - self._keep
        if skipped > 0:
            del whole[:skipped]
            self.count += skipped
            begun.take()
        for piece in whole:
            begun.add(piece)
            self.lines.append(Line(version, stream, begun.take()))
        self.count += len(whole)
        begun.add(rest)
        self.now = begun.text()

    @property
    def last(self) -> str:
        """The newest words."""
        return self.now or (self.lines[-1].text if self.lines else "")
