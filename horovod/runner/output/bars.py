"""Lines and progress bars that share one place: a line never begins inside a bar, nor one rank's bar inside another's.

A bar is what ends with a carriage return, so that the next text overwrites it. Pure: bytes in, bytes out.
"""

from __future__ import annotations

from collections.abc import Hashable

ERASE = b"\r\x1b[K"  # the line on which the cursor is


class Place:
    """What was written last to one terminal, file or pipe. Takes whole lines and bars, in the order in which they are
    shown; `source` tells the streams of the ranks apart.
    """

    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal
        self._bar_of: Hashable | None = None  # the source of the bar that stands at the end

    @property
    def in_bar(self) -> bool:
        """Does a bar stand at the end?"""
        return self._bar_of is not None

    def add(self, data: bytes, source: Hashable, rewrites: bool) -> bytes:
        """`data` with what keeps it apart. `rewrites`: a line can be erased there."""
        if self._terminal:
            return self._add_to_terminal(data, source, rewrites)
        return self._add_to_file(data, source) if self.in_bar or b"\r" in data else data

    def end(self) -> bytes:
        """What ends the bar, if one stands there, before words of others."""
        ended, self._bar_of = self.in_bar, None
        return b"\n" if ended else b""

    def go_on(self, source: Hashable) -> bytes:
        """The \\n of a \\r\\n whose \\r has been shown already: it ends that line if it still stands at the end."""
        return self.end() if self._bar_of == source else b""

    def _add_to_terminal(self, data: bytes, source: Hashable, rewrites: bool) -> bytes:
        """A source may overwrite its own bar: that is how it is drawn, and how a line takes its place."""
        if self._bar_of not in (None, source):
            # Bars of several ranks take turns on one line, where that can be erased; else the screen would be full
            # of them in a moment.
            is_bar = data.endswith(b"\r") and b"\n" not in data
            data = (ERASE if is_bar and rewrites else b"\n") + data
        self._bar_of = source if data.endswith(b"\r") else None
        return data

    def _add_to_file(self, data: bytes, source: Hashable) -> bytes:
        """Nothing is overwritten there, and who reads it looks for lines: each follows a \\n, so it begins with its
        rank. Only the states of one source's bar follow each other without."""
        kept = []
        for piece in data.splitlines(keepends=True):
            if piece == b"\r":  # back to where the line begins anyway
                continue
            if self.in_bar and (self._bar_of != source or piece.endswith(b"\n")):
                kept.append(b"\n")
            kept.append(piece)
            self._bar_of = source if piece.endswith(b"\r") else None
        return b"".join(kept)
