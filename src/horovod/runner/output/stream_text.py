"""Text of one stream of one rank: plain lines, and what it draws if it moves the cursor."""

from __future__ import annotations

import codecs
import re

from horovod.runner.output.canvas import Canvas
from horovod.runner.output.colours import Colours
from horovod.runner.output.lines import LineCutter
from horovod.runner.output.row import Row

# Sequences that move the cursor or erase, and incomplete ones that could become such.
_MOVES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*(?:[A-HJKf]|\Z)|\Z)")


class StreamText:
    """Lines of one stream, returned as they become final.

    Most output is plain lines, which are only split. From the first cursor movement until no drawn line can change any
    more, a canvas processes the output.
    """

    def __init__(self, contain: bool) -> None:
        """Create an empty stream. With `contain`, colours do not reach the next line."""
        self._contain = contain
        self._cutter = LineCutter()
        self._colours = Colours()
        self._canvas: Canvas | None = None
        self._climbs = False  # True if the program has ever moved up, as for several bars
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    @property
    def drawing(self) -> bool:
        """True if there are lines that may still change."""
        return self._canvas is not None

    def feed(self, data: bytes, now: float) -> list[bytes]:
        """Return the lines that become final, with their line ends."""
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
        # Line ends alone may only skip another program's bar.
        return data[:1] != b"\n" or self._cutter.inside or bool(data.strip(b"\n"))

    def _contained(self, lines: list[bytes], coloured: bool = True) -> list[bytes]:
        """Contain the colours of lines. If `coloured` is False, the lines do not change them."""
        if self._contain and (coloured or self._colours):
            return [self._colours.contain(line) for line in lines]
        return lines

    def settle(self, now: float, at_once: bool = False) -> list[bytes]:
        """Return lines that became final because the program has not returned to them; see `Canvas.settle`.

        With `at_once` they are final at any time, unless the program has moved up before.
        """
        if self._canvas is None:
            return []
        lines = self._canvas.settle(now, at_once and not self._climbs)
        self._put_away()
        return lines

    def _put_away(self) -> None:
        """Drop the canvas when it is empty."""
        if self._canvas is not None and self._canvas.idle and not self._decoder.getstate()[0]:
            self._canvas = None

    def finish(self) -> list[bytes]:
        """Return what is left, with a line end added if it lacks one."""
        if self._canvas is not None:
            left = self._canvas.feed(self._decoder.decode(b"", final=True), 0.0) + self._canvas.finish()
            self._canvas = None
            self._decoder.reset()
            return left
        rest = self._cutter.take()
        return self._contained([rest + b"\n"]) if rest else []

    def next_due(self) -> float | None:
        """Return when `settle` may return lines without further input, or None."""
        return None if self._canvas is None else self._canvas.next_due()

    def seen(self) -> list[Row]:
        """Return the visible lines that can still change."""
        return [] if self._canvas is None else self._canvas.seen()
