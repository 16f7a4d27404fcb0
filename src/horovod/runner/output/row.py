"""Lines of an emulated terminal, with their characters, colors and column widths."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

# Latin letters and the characters of progress bars occupy one column each, so their width needs no lookup.
_NARROW = re.compile("[ -~\u00a1-\u00ac\u00ae-\u02ff\u2500-\u259f]*")
_NOTHING = {"Mn", "Me", "Cf", "Cc"}  # Unicode categories of combining and invisible characters


@lru_cache(maxsize=4096)
def columns_of(character: str) -> int:
    """Return the number of columns that the character occupies on a terminal: 0, 1 or 2."""
    if character == "\u00ad":  # Terminals show the soft hyphen, although Unicode counts it as invisible.
        return 1
    if unicodedata.category(character) in _NOTHING:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cells_of(text: str) -> list[str]:
    """Split text into cells, one per terminal column.

    A cell contains a character with its combining characters. The right half of a wide character is an empty cell.
    Combining characters at the beginning of the text are dropped.
    """
    if _NARROW.fullmatch(text):
        return list(text)
    cells: list[str] = []
    for character in text:
        columns = columns_of(character)
        if columns:
            cells += [character, ""][:columns]
            continue
        at = len(cells) - 1
        if at > 0 and not cells[at]:
            at -= 1
        if at >= 0 and len(cells[at]) < 16:  # Drop combining characters after the 15th, to limit memory.
            cells[at] += character
    return cells


def cut(cells: list[str], columns: int) -> list[str]:
    """Return the first `columns` cells of a row. If this cuts a wide character in half, replace it with a space."""
    if len(cells) <= columns:
        return cells
    kept = cells[:columns]
    if kept and not cells[columns]:
        kept[-1] = " "
    return kept


# Matches Select Graphic Rendition sequences, which set colors: ESC [ numbers m (ECMA-48, 8.3.117).
_SGR = re.compile(rb"\x1b\[([0-9;:]{0,256})m")
RESET = b"\x1b[0m"
# Ranges of codes that enable an attribute, as (first code, last code, attribute). Each new code for an attribute, such
# as the text color, replaces the previous one.
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
_RESET = {
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
_EXTENDED = {38, 48, 58}  # Color codes that are followed by 5;index or 2;red;green;blue


class Colours:
    """Active text colors in one output stream of a rank.

    Each line ends by switching the colors off, and the next line starts by switching them on. Otherwise, the colors
    would affect prefixes and lines of other ranks.
    """

    def __init__(self) -> None:
        self._on: dict[str, bytes] = {}

    def contain(self, line: bytes) -> bytes:
        """Return the line with the current colors switched on at its start, and all colors switched off at its end."""
        if not self._on and b"\x1b[" not in line:
            return line
        text = line.rstrip(b"\r\n")
        before = self.sequence()
        for match in _SGR.finditer(text):
            self.take(match[1])
        return before + text + (RESET if self._on else b"") + line[len(text) :]

    def __bool__(self) -> bool:
        """Return True if any color is active."""
        return bool(self._on)

    def sequence(self) -> bytes:
        """Return the escape sequence that switches on the current colors."""
        return b"\x1b[" + b";".join(self._on.values()) + b"m" if self._on else b""

    def take(self, parameters: bytes) -> None:
        """Apply a color sequence. `parameters` is the text between ESC [ and m."""
        for number, text in _codes(parameters):
            if number == 0:
                self._on.clear()
            for aspect in _RESET.get(number, ()):
                self._on.pop(aspect, None)
            for low, high, aspect in _ON:
                if low <= number <= high:
                    self._on[aspect] = text


def _codes(parameters: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (number, code) for each code in a color sequence. An empty number means 0."""
    parts = parameters.split(b";")
    while parts:
        part = parts.pop(0)
        number = int(part.partition(b":")[0] or 0)
        if number in _EXTENDED and b":" not in part and parts:
            count = {b"5": 2, b"2": 4}.get(parts[0], 1)
            part = b";".join([part, *parts[:count]])
            del parts[:count]
        elif part == b"4:0":  # Underline style 0 (4:0) is equivalent to code 24, which turns off underlining.
            number = 24
        yield number, part


ROW_LIMIT = 4096  # Maximum number of columns of an overwritten line
_OFF = RESET.decode()


class Row:
    """A line of a terminal, stored as cells with colors.

    The original text, of any length, is also stored until the program overwrites a part of the line.

    Attributes:
        live: True if the program moves the cursor within the line, as progress bars do.
        last_left: Time (s) at which the cursor moved to the next line, or None if it is still on this line.
        width: Number of columns in use.
        size: Number of characters of the original text.
        since: Time (s) at which the progress bar appeared or was last logged.
        changed: True if the progress bar has changed since `since`.
    """

    def __init__(self, style: str = "", live: bool = False) -> None:
        """Create an empty line. `style` is the escape sequence for the colors that are on at its start."""
        self.live = live
        self.last_left: float | None = None
        self.width = 0
        self.size = 0
        self._cells: list[str] = []
        self._styles: list[str] | None = None  # Color escape sequence of each cell, or None if the line has no colors
        self._begin = style
        self._end = style
        self._text: list[str] | None = [] if not live else None
        self._ending = "\n"
        self._returned = False
        self._erased = live
        self.since: float | None = None
        self.changed = False
        self._logged: str | None = None

    @property
    def blank(self) -> bool:
        """True if the line contains no visible characters."""
        return not self._cells or not "".join(self._cells).strip()

    @property
    def plain(self) -> bool:
        """True if no part of the line was overwritten, so that its original text can be shown."""
        return self._text is not None and not (self._erased and self.blank)

    @property
    def empty(self) -> bool:
        """True if the program has neither written to the line nor erased it."""
        return not (self._text is None or self._text or self._returned or self._erased)

    @property
    def spent(self) -> bool:
        """True if the line is blank and the program will probably not write to it again."""
        return self.blank and self.last_left is None and not self._returned and not self._text

    def write(self, x: int, text: str, cells: list[str], style: str) -> None:
        """Write text into the line.

        Args:
            x: Column of the first character.
            text: Text to write.
            cells: The same text, as one string for each column.
            style: Escape sequence that sets the text's colors.
        """
        if self._text is not None and x == self.width and not self._returned:
            self._text.append(text)
            self.size += len(text)
        else:
            self._text = None
        self._end = style
        self.changed = True
        self._put(x, cells[: max(0, ROW_LIMIT - x)], style)
        self.width = max(self.width, x + len(cells))

    def _put(self, x: int, cells: list[str], style: str) -> None:
        if not cells:
            return
        own, end = self._cells, x + len(cells)
        if x > len(own):
            own += [" "] * (x - len(own))
        if style and self._styles is None:
            self._styles = []
        if self._styles is not None:
            self._styles += [""] * (max(len(own), end) - len(self._styles))
            self._styles[x:end] = [style] * len(cells)
        # Overwriting the right half of a wide character turns its left half into a space.
        if 0 < x < len(own) and not own[x]:
            own[x - 1] = " "
        own[x:end] = cells
        if end < len(own) and not own[end]:
            own[end] = " "

    def keep(self, sequence: str, style: str) -> None:
        """Store an escape sequence that prints nothing, such as a change of colors."""
        self._end = style
        if self._text is not None and not self._returned:
            self._text.append(sequence)
            self.size += len(sequence)

    def go_back(self, style: str) -> None:
        """Move the cursor to the first column. If the line contains only spaces, treat it as a new line."""
        self.live = True
        if self._text is None and self.blank:
            self.renew(style)
        else:
            self._returned = True

    def erase(self, start: int, end: int | None, style: str) -> None:
        """Erase from column `start` to column `end`. None means the end of the line."""
        self.live = self.changed = True
        end = len(self._cells) if end is None else min(end, len(self._cells))
        if start < end:
            self._text = None
            self._put(start, [" "] * (end - start), "")
        if self.blank:
            self.renew(style)

    def renew(self, style: str) -> None:
        """Reset the line. It is not shown if the program writes nothing more to it."""
        self._cells, self._styles, self.width = [], None, 0
        self._text, self.size, self._begin, self._end = [], 0, style, style
        self._returned, self._erased = False, True

    def end(self, returned: bool, now: float) -> None:
        r"""Record that the cursor moved to the next line. `returned` is True if the line ended with \r\n."""
        self.last_left = now
        self._ending = "\r\n" if returned or self._returned else "\n"

    def logged(self, now: float) -> bytes:
        """Return the current state of the progress bar as a log line."""
        self._logged, self.since, self.changed = self.shown(), now, False
        return (self._logged + "\n").encode(errors="surrogateescape")

    def line(self) -> bytes | None:
        """Return the line to show in the end, or None if it is blank or was already logged in this form."""
        if self._logged is not None and self._logged == self.shown():
            return None
        if self._text is not None:
            if self._erased and self.blank:
                return None
            text = self._begin + "".join(self._text) + (_OFF if self._end else "") + self._ending
        else:
            text = self.shown() + "\n"
            if text == "\n":
                return None
        return text.encode(errors="surrogateescape")

    def shown(self, prefix: str = "", columns: int | None = None) -> str:
        """Return the prefix and the visible text, truncated to `columns` columns.

        Colors are switched off at the end.
        """
        cells = self._cells
        if columns is not None:
            label = cut(cells_of(prefix), max(1, columns // 2))
            prefix, cells = "".join(label), cut(cells, max(0, columns - len(label)))
        if self._styles is None:
            return prefix + "".join(cells).rstrip(" ")
        styles = self._styles + [""] * (len(cells) - len(self._styles))
        last = max((i for i, cell in enumerate(cells) if cell != " " or styles[i]), default=-1)
        runs = itertools.groupby(range(last + 1), styles.__getitem__)
        text = prefix
        for style, places in runs:
            run = "".join(cells[i] for i in places)
            text += f"{style}{run}{_OFF}" if style else run
        return text
