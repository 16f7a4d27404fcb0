"""One line of a terminal on which a program draws: what stands on it, and how it is shown."""

from __future__ import annotations

import itertools

from horovod.runner.output.colours import RESET
from horovod.runner.output.width import cells_of, cut

ROW_LIMIT = 4096  # columns that are kept of a line that is drawn over
_OFF = RESET.decode()


class Row:
    """Columns with their colours; and, while nothing has been drawn over, the text as it came, of any length.

    `live`: the program moves about on it, as progress bars do. `left`: when the cursor has gone to the next one (s).
    """

    def __init__(self, style: str = "", live: bool = False) -> None:
        """`style`: the colours that are on at its beginning, as the sequence that switches them on."""
        self.live = live
        self.left: float | None = None
        self.width = 0
        self.size = 0  # of the text as it came
        self._cells: list[str] = []
        self._styles: list[str] | None = None  # of each cell, from the first that has one on
        self._begin = style
        self._end = style
        self._text: list[str] | None = [] if not live else None
        self._ending = "\n"
        self._returned = False
        self._erased = live
        # For logs: since when the bar is there or when it was logged last, and what was logged.
        self.since: float | None = None
        self.changed = False
        self._logged: str | None = None

    @property
    def blank(self) -> bool:
        """Is there nothing to be seen?"""
        return not self._cells or not "".join(self._cells).strip()

    @property
    def plain(self) -> bool:
        """A line like any other: nothing has been drawn over since it was empty last."""
        return self._text is not None and not (self._erased and self.blank)

    @property
    def empty(self) -> bool:
        """Nothing at all has happened on it."""
        return not (self._text is None or self._text or self._returned or self._erased)

    @property
    def spent(self) -> bool:
        """Is nothing to be seen, and nothing expected?"""
        return self.blank and self.left is None and not self._returned and not self._text

    def write(self, x: int, text: str, cells: list[str], style: str) -> None:
        """Put the text, which takes these cells, at the column."""
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
        mine, end = self._cells, x + len(cells)
        if x > len(mine):
            mine += [" "] * (x - len(mine))
        if style and self._styles is None:
            self._styles = []
        if self._styles is not None:
            self._styles += [""] * (max(len(mine), end) - len(self._styles))
            self._styles[x:end] = [style] * len(cells)
        if 0 < x < len(mine) and not mine[x]:  # half a wide character is left: a space
            mine[x - 1] = " "
        mine[x:end] = cells
        if end < len(mine) and not mine[end]:
            mine[end] = " "

    def keep(self, sequence: str, style: str) -> None:
        """A sequence that shows nothing itself, such as a change of colours."""
        self._end = style
        if self._text is not None and not self._returned:
            self._text.append(sequence)
            self.size += len(sequence)

    def go_back(self, style: str) -> None:
        """The cursor goes to the first column. What has been wiped out by spaces counts as new."""
        self.live = True
        if self._text is None and self.blank:
            self.renew(style)
        else:
            self._returned = True

    def erase(self, start: int, end: int | None, style: str) -> None:
        """From column `start` to column `end`, or to the last."""
        self.live = self.changed = True
        end = len(self._cells) if end is None else min(end, len(self._cells))
        if start < end:
            self._text = None
            self._put(start, [" "] * (end - start), "")
        if self.blank:
            self.renew(style)

    def renew(self, style: str) -> None:
        """It begins anew; should nothing come, there is no line."""
        self._cells, self._styles, self.width = [], None, 0
        self._text, self.size, self._begin, self._end = [], 0, style, style
        self._returned, self._erased = False, True

    def end(self, returned: bool, now: float) -> None:
        """The cursor goes to the next line; `returned`: by \\r\\n."""
        self.left = now
        self._ending = "\r\n" if returned or self._returned else "\n"

    def logged(self, now: float) -> bytes:
        """The state for a log, in which the next comes later."""
        self._logged, self.since, self.changed = self.shown(), now, False
        return (self._logged + "\n").encode(errors="surrogateescape")

    def line(self) -> bytes | None:
        """The whole line when it is over; None: there is nothing to be seen, or nothing that the log has not yet."""
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
        """What is to be seen of it behind a prefix, in so many columns: both are cut. No colour is left on."""
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
