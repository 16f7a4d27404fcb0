"""Parser for one output stream of a rank, which contains lines and text drawn by moving the cursor."""

from __future__ import annotations

import codecs
import re

from horovod.runner.output.row import Colours, Row, cells_of

LINE_LIMIT = 16 << 20  # Maximum length of an incomplete line in bytes; longer lines are split


class LineCutter:
    r"""Splitter that cuts the bytes of one stream into lines that end with \n. It does not modify the bytes."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0

    @property
    def inside(self) -> bool:
        """True if the last line is incomplete."""
        return bool(self._parts)

    def feed(self, data: bytes) -> list[bytes]:
        r"""Return the lines that `data` completes. `data` must not contain \r except before \n."""
        lines = data.splitlines(keepends=True)
        rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        if lines and self._parts:
            lines[0] = self.take() + lines[0]
        if rest:
            self._parts.append(rest)
            self._length += len(rest)
            if self._length > LINE_LIMIT:
                lines.append(self.take() + b"\n")
        return lines

    def take(self) -> bytes:
        """Remove and return the incomplete last line."""
        rest = b"".join(self._parts)
        self._parts = []
        self._length = 0
        return rest


# Seconds without a redraw after which a progress bar is final
HOLD = 0.5
ROWS_LIMIT = 64  # Maximum number of lines in the canvas; it returns older lines as final
TRACEBACK = "Traceback (most recent call last):"

_TOKEN = re.compile(
    "([^\x00-\x1f\x7f]+)"  # plain text
    "|(\n)|(\r+\n)|(\r+)|(\b+)|(\t)"
    "|\x1b\\[([0-?]*)[ -/]*([@-~])"  # control sequence, that is, parameters and a final byte (ECMA-48, 5.4);
    "|(\x1b][^\x07\x1b]*(?:\x07|\x1b\\\\))"  # window title or hyperlink;
    "|\x1b[ -/]*[0-~]|[\x00-\x1f\x7f]"  # any other escape sequence or control character
)
# Matches an incomplete escape sequence at the end of a text
_TORN = re.compile("\x1b(?:\\[[0-?]*[ -/]*|][^\x07\x1b]*\x1b?|[ -/]*)\\Z")
_TORN_LIMIT = 4096
_COLOURS = re.compile("[0-9;:]{0,256}")
_NUMBER = re.compile("[0-9]{1,4}")


class Canvas:
    r"""Emulated terminal for one stream, limited to the lines that a program can still change.

    Programs that draw progress bars return to the beginning of a line (\r, \b), erase (ESC [ K) and move up (ESC [ A).
    The canvas follows these movements and returns each line once it is final. Callers pass the time.
    """

    def __init__(self, colours: Colours) -> None:
        self._colours = colours  # Currently active colors of the stream; the caller shares and updates this object
        self._style = colours.sequence().decode()
        self._rows = [Row(self._style)]
        self._x = self._y = 0
        self._climbs = False  # True while the program moves the cursor up to redraw several progress bars
        self.has_climbed = False
        self._torn = ""
        self._now = 0.0
        self._over: list[bytes] = []

    @property
    def idle(self) -> bool:
        """True if the canvas is empty and the cursor is at column 0."""
        return len(self._rows) == 1 and self._rows[0].empty and self._x == 0 and not self._torn

    def feed(self, text: str, now: float) -> list[bytes]:
        """Process text, and return the lines that can no longer change."""
        self._now = now
        text, self._torn = self._torn + text, ""
        if "\x1b" in text[-_TORN_LIMIT:] and (torn := _TORN.search(text, max(0, len(text) - _TORN_LIMIT))):
            text, self._torn = text[: torn.start()], torn[0]
        for match in _TOKEN.finditer(text):
            self._take(match)
        return self._take_lines()

    def settle(self, now: float, at_once: bool = False) -> list[bytes]:
        """Return the lines that the program has not redrawn within HOLD seconds.

        If `at_once` is True, return all lines above the cursor without waiting.
        """
        count = 0
        for row in self._rows[: self._y]:
            if row.last_left is None or (now < row.last_left + HOLD and not at_once):
                break
            count += 1
        self._give(count)
        return self._take_lines()

    def finish(self) -> list[bytes]:
        """Return all remaining lines at the end of the stream."""
        if self._rows[-1].blank and self._rows[-1].last_left is None:
            self._rows.pop()
        self._give(len(self._rows))
        self._rows, self._x, self._y, self._torn = [Row(self._style)], 0, 0, ""
        return self._take_lines()

    def next_due(self) -> float | None:
        """Return the time at which `settle` can return lines without further input, or None."""
        left = self._rows[0].last_left if self._y else None
        return None if left is None else left + HOLD

    def seen(self) -> list[Row]:
        """Return the visible lines that may still be redrawn: progress bars and the lines between them."""
        return [row for row in self._rows if (row.live or row.last_left is not None) and not row.blank]

    def _take_lines(self) -> list[bytes]:
        if self._x == 0 and self._y == 0 and all(row.spent for row in self._rows) and not self._rows[0].empty:
            self._rows[0].renew(self._style)
            del self._rows[1:]
            self._climbs = False
        over, self._over = self._over, []
        return over

    def _give(self, count: int) -> None:
        """Move the first `count` lines from the canvas to the final lines."""
        for row in self._rows[:count]:
            line = row.line()
            if line is not None:
                self._over.append(line)
        del self._rows[:count]
        self._y = max(0, self._y - count)

    def _take(self, match: re.Match[str]) -> None:
        kind = match.lastindex
        if kind == 1:
            self._write(match[1])
        elif kind == 2 or kind == 3:
            self._end_row(returned=kind == 3)
        elif kind == 4:
            self._rows[self._y].go_back(self._style)
            self._x = 0
        elif kind == 5:
            self._rows[self._y].live = True
            self._x = max(0, self._x - len(match[5]))
        elif kind == 6:
            self._go_to_tab(8 - self._x % 8)
        elif kind == 8:
            self._control(match[0], match[7], match[8])
        elif not match[0].startswith("\x1b") or kind == 9:
            self._rows[self._y].keep(match[0], self._style)

    def _write(self, text: str) -> None:
        row = self._rows[self._y]
        # The program was interrupted, so a traceback follows a progress bar on the same line. Split the line.
        if row.live and TRACEBACK in text:
            bar, _, rest = text.partition(TRACEBACK)
            self._put(bar, cells_of(bar))
            if not row.blank:
                self._end_row(returned=False)
            text = TRACEBACK + rest
        self._put(text, cells_of(text))

    def _go_to_tab(self, columns: int) -> None:
        if self._x >= self._rows[self._y].width:
            self._put("\t", [" "] * columns)
        else:  # Within existing text, a tab only moves the cursor.
            self._x += columns

    def _put(self, text: str, cells: list[str]) -> None:
        row = self._rows[self._y]
        if row.live and row.since is None:
            row.since = self._now
        row.write(self._x, text, cells, self._style)
        self._x += len(cells)
        if row.size > LINE_LIMIT:
            self._end_row(returned=False)

    def _end_row(self, returned: bool) -> None:
        """End the current line and move the cursor to the next line.

        A normal line and all lines above it become final. A progress bar remains, because the program can return to it.
        An empty line also remains, because it might only skip another program's progress bar.
        """
        row = self._rows[self._y]
        row.end(returned, self._now)
        self._go_down(1)
        self._x = 0
        if row.plain and row.width and not self._climbs:
            self._give(self._y)

    def _go_down(self, count: int) -> None:
        while len(self._rows) <= self._y + count:
            self._rows.append(Row(self._style))
        for row in self._rows[self._y : self._y + count]:
            row.last_left = self._now if row.last_left is None else row.last_left
        self._y += count
        self._rows[self._y].last_left = None
        if len(self._rows) > ROWS_LIMIT:
            self._give(len(self._rows) - ROWS_LIMIT)

    def _go_up(self, count: int) -> None:
        self._climbs = self.has_climbed = True
        missing = count - self._y
        if missing > 0:  # The target is above row 0, the first line that can still change, so insert rows before it.
            self._rows[:0] = [Row(live=True) for _ in range(missing)]
            self._y += missing
            del self._rows[ROWS_LIMIT:]
        self._y -= count
        row = self._rows[self._y]
        row.live, row.last_left = True, None

    def _control(self, sequence: str, parameters: str, what: str) -> None:
        row = self._rows[self._y]
        if what == "m":
            if _COLOURS.fullmatch(parameters):
                self._colours.take(parameters.encode())
                self._style = self._colours.sequence().decode()
                row.keep(sequence, self._style)
            return
        found = _NUMBER.match(parameters)
        number = int(found[0]) if found else None
        count = max(1, min(number or 1, ROWS_LIMIT - 1))
        if what in "AF":
            self._go_up(count)
        elif what in "BE":
            self._go_down(count)
        elif what == "C":
            self._x += min(number or 1, 1000)
        elif what == "D":
            self._x = max(0, self._x - (number or 1))
        elif what == "G":
            self._x = (number or 1) - 1
        elif what == "K" or (what == "J" and not number):
            self._erase(number or 0, below=what == "J")
        if what in "EF":
            self._x = 0

    def _erase(self, which: int, below: bool) -> None:
        row = self._rows[self._y]
        row.erase(self._x if which == 0 else 0, self._x + 1 if which == 1 else None, self._style)
        if below:
            del self._rows[self._y + 1 :]


# Matches escape sequences that move the cursor or erase text, and incomplete beginnings of such sequences.
_MOVES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*(?:[A-HJKf]|\Z)|\Z)")


class StreamText:
    """Splitter that divides one stream into lines, and returns each line as soon as it is final.

    Most output consists of plain lines, which are only split. While a program moves the cursor to draw, a canvas
    emulates the terminal, until all drawn lines are final.
    """

    def __init__(self, contain: bool) -> None:
        """Create an empty stream. If `contain` is True, colors do not continue on the next line."""
        self._contain = contain
        self._cutter = LineCutter()
        self._colours = Colours()
        self._canvas: Canvas | None = None
        self._climbs = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    @property
    def drawing(self) -> bool:
        """True if the stream has lines that may still be redrawn."""
        return self._canvas is not None

    def feed(self, data: bytes, now: float) -> list[bytes]:
        """Process data, and return the lines that are now final, with their line endings."""
        if self._canvas is None:
            if self._is_plain(data):
                coloured = self._cutter.inside or b"\x1b" in data
                return self._contained(self._cutter.feed(data), coloured)
            self._canvas = Canvas(self._colours)
            data = self._cutter.take() + data
        lines = self._canvas.feed(self._decoder.decode(data), now)
        self._climbs = self._climbs or self._canvas.has_climbed
        self._store()
        return lines

    def _is_plain(self, data: bytes) -> bool:
        if b"\r" in data and data.count(b"\r") != data.count(b"\r\n"):
            return False
        if b"\x08" in data or (b"\x1b" in data and _MOVES.search(data)):
            return False
        # Newlines alone are not plain text: a program can print them to move below another program's progress bars.
        return data[:1] != b"\n" or self._cutter.inside or bool(data.strip(b"\n"))

    def _contained(self, lines: list[bytes], coloured: bool = True) -> list[bytes]:
        """If `contain` was requested, switch off the colors at the end of each line, and on again in the next line.

        `coloured` is False if the new lines contain no color sequences.
        """
        if self._contain and (coloured or self._colours):
            return [self._colours.contain(line) for line in lines]
        return lines

    def settle(self, now: float, at_once: bool = False) -> list[bytes]:
        """Return the lines that the program has not redrawn within HOLD seconds.

        If `at_once` is True, return all lines above the cursor without waiting, unless the program has moved the cursor
        up to redraw lines.
        """
        if self._canvas is None:
            return []
        lines = self._canvas.settle(now, at_once and not self._climbs)
        self._store()
        return lines

    def _store(self) -> None:
        if self._canvas is not None and self._canvas.idle and not self._decoder.getstate()[0]:
            self._canvas = None

    def finish(self) -> list[bytes]:
        """Return the remaining output at the end of the stream. Add a final newline if it is missing."""
        if self._canvas is not None:
            left = self._canvas.feed(self._decoder.decode(b"", final=True), 0.0) + self._canvas.finish()
            self._canvas = None
            self._decoder.reset()
            return left
        rest = self._cutter.take()
        return self._contained([rest + b"\n"]) if rest else []

    def next_due(self) -> float | None:
        """Return the time at which `settle` will return lines even if no more output arrives, or None."""
        return None if self._canvas is None else self._canvas.next_due()

    def seen(self) -> list[Row]:
        """Return the visible lines that may still be redrawn, such as progress bars."""
        return [] if self._canvas is None else self._canvas.seen()
