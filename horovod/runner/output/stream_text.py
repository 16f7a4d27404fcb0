"""One stream of one rank: lines as they come, and what it draws where it moves about."""

from __future__ import annotations

import codecs
import re

from horovod.runner.output.canvas import Canvas
from horovod.runner.output.colours import Colours
from horovod.runner.output.lines import LineCutter
from horovod.runner.output.row import Row

# What moves the cursor or erases, and what may become that with what is still to come.
_MOVES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*(?:[A-HJKf]|\Z)|\Z)")


class StreamText:
    """Most output is plain lines, which are only cut. From the first character by which a program draws until there is
    nothing more that it could draw over, a canvas follows it.
    """

    def __init__(self, contain: bool) -> None:
        """`contain`: no colour is to reach the next line."""
        self._contain = contain
        self._cutter = LineCutter()
        self._colours = Colours()
        self._canvas: Canvas | None = None
        self._climbs = False  # has it ever moved up, as for several bars?
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    @property
    def drawing(self) -> bool:
        """Is there anything that may still change?"""
        return self._canvas is not None

    def feed(self, data: bytes, now: float) -> list[bytes]:
        """The lines that are over, with their ends."""
        if self._canvas is None:
            if self._is_plain(data):
                coloured = self._cutter.inside or b"\x1b" in data
                return self._contained(self._cutter.feed(data), coloured)
            self._canvas = Canvas(self._colours)
            data = self._cutter.take() + data
        lines = self._canvas.feed(self._decoder.decode(data), now)
        self._climbs = self._climbs or self._canvas.has_climbed
        self._put_away()
        return lines

    def _is_plain(self, data: bytes) -> bool:
        if b"\r" in data and data.count(b"\r") != data.count(b"\r\n"):
            return False
        if b"\x08" in data or (b"\x1b" in data and _MOVES.search(data)):
            return False
        # Ends of lines alone may be the way past a bar of another program.
        return data[:1] != b"\n" or self._cutter.inside or bool(data.strip(b"\n"))

    def _contained(self, lines: list[bytes], coloured: bool = True) -> list[bytes]:
        """`coloured`: there may be changes of colours in them."""
        if self._contain and (coloured or self._colours):
            return [self._colours.contain(line) for line in lines]
        return lines

    def settle(self, now: float, at_once: bool = False) -> list[bytes]:
        """The lines to which the program has not come back; `at_once`: nor will it, unless it moves up and down."""
        if self._canvas is None:
            return []
        lines = self._canvas.settle(now, at_once and not self._climbs)
        self._put_away()
        return lines

    def _put_away(self) -> None:
        """The canvas, when there is nothing on it."""
        if self._canvas is not None and self._canvas.idle and not self._decoder.getstate()[0]:
            self._canvas = None

    def finish(self) -> list[bytes]:
        """What is left; a line without an end gets one."""
        if self._canvas is not None:
            left = self._canvas.feed(self._decoder.decode(b"", final=True), 0.0) + self._canvas.finish()
            self._canvas = None
            self._decoder.reset()
            return left
        rest = self._cutter.take()
        return self._contained([rest + b"\n"]) if rest else []

    def next_due(self) -> float | None:
        """When `settle` has something to give, if nothing comes."""
        return None if self._canvas is None else self._canvas.next_due()

    def seen(self) -> list[Row]:
        """The lines that can be seen and still change."""
        return [] if self._canvas is None else self._canvas.seen()
