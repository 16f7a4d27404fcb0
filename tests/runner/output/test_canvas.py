"""The final text of a program that draws; test_screens.py compares it with a real terminal."""

import random

import pytest

from horovod.runner.output import terminal
from horovod.runner.output.row import ROW_LIMIT, Colours, cells_of, columns_of, cut
from horovod.runner.output.terminal import LINE_LIMIT, ROWS_LIMIT, Canvas, StreamText

UP = "\x1b[A"
RED = "\x1b[31mred\x1b[0m"


def draw(*texts, now=0.0):
    """Return (completed lines, text that still changes) after each input."""
    view = Canvas(Colours())
    return [([line.decode() for line in view.feed(text, now)], [row.shown() for row in view.seen()]) for text in texts]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["\r 0%", "\r 50%", "\rdone\n"], [([], [" 0%"]), ([], [" 50%"]), ([], ["done"])]),
        (["50%\r", "60%\r"], [([], ["50%"]), ([], ["60%"])]),
        (["100%\r9%"], [([], ["9%0%"])]),  # shorter text leaves the rest of the text that it overwrites
        (["100%\r9%\x1b[K"], [([], ["9%"])]),
        (["100%\x1b[2K\r9%"], [([], ["9%"])]),
        (["abc\b\bx"], [([], ["axc"])]),
        (["\r5%", "\r  \r", "word\n"], [([], ["5%"]), ([], []), (["word\n"], [])]),  # a bar is removed to print a line
        (["\r5%\r  \r6%"], [([], ["6%"])]),
        (["a", "b\n"], [([], []), (["ab\n"], [])]),  # no changing text
        (["\r5%\nword\n"], [(["5%\n", "word\n"], [])]),
        # Two bars, one below the other; the lower one is removed.
        (["\router", "\n\rinn" + UP, "\n\r   \r" + UP], [([], ["outer"]), ([], ["outer", "inn"]), ([], ["outer"])]),
        # Only one, below another program's line.
        (["\n\r5%" + UP, "\n\r6%" + UP], [([], ["5%"]), ([], ["6%"])]),
        (["\ra\n\rb\n\rc\x1b[2A\rx\x1b[2B\rz"], [([], ["x", "b", "z"])]),
        (["\ra\n\rb\x1b[F\x1b[J"], [([], [])]),
        (["\rabc\x1b[1G\x1b[1Cx\x1b[1Dy\x1b[?25l\x1b]0;title\x07"], [([], ["ayc"])]),
        (["\r\x1b[3", "1mred\x1b[0m", "\x1b", "[Kx"], [([], []), ([], [RED]), ([], [RED]), ([], [RED + "x"])]),
        (["\ra\tb"], [([], ["a       b"])]),
        (["\r25%Traceback (most recent call last):\n"], [(["25%\n", "Traceback (most recent call last):\n"], [])]),
    ],
)  # fmt: skip
def test_canvas_output(texts, expected):
    assert draw(*texts) == expected


def test_memory_is_bounded():
    view = Canvas(Colours())
    for _ in range(50):
        view.feed("\r" + "x" * 10_000, 0.0)
        view.feed("\u0301" * 10_000 + "\b" * 10, 0.0)
    [row] = view.seen()
    assert len(row._cells) == ROW_LIMIT
    assert row._text is None
    view = Canvas(Colours())
    for _ in range(100):
        view.feed("\r" + "bar\n" + UP * 2, 0.0)
    assert len(view._rows) <= ROWS_LIMIT
    view.feed("\x1b[" + "1" * 100_000, 0.0)
    assert len(view._torn) <= terminal._TORN_LIMIT
    assert LINE_LIMIT > ROW_LIMIT
    long = "y" * (3 * ROW_LIMIT)
    assert Canvas(Colours()).feed(long + "\n", 0.0) == [long.encode() + b"\n"]  # text that is not overwritten stays


def test_any_chunks_and_bytes_give_the_same_result():
    random.seed(3)
    pieces = [b"\r", b"\n", b"a", b"bc", b"\xc3\xa9", b"\xe4\xb8\xad", b"\xff", b"\x1b[31m", b"\b", b"\x1b[K"]
    for _ in range(300):
        text = b"".join(random.choice(pieces) for _ in range(30))
        whole, cut_up = StreamText(True), StreamText(True)
        expected = whole.feed(b"\r" + text, 0.0) + whole.finish()
        found = [line for at in range(len(text) + 1) for line in cut_up.feed((b"\r" + text)[at : at + 1], 0.0)]
        assert [*found, *cut_up.finish()] == expected, text
        assert not cut_up.drawing


def test_widths():
    assert [columns_of(c) for c in "a\u00e9\u4e2d\u0301\u200d\u2588\u2501\U0001f600\u00ad"] == [
        1,
        1,
        2,
        0,
        0,
        1,
        1,
        2,
        1,
    ]
    assert cells_of("a\u4e2de\u0301") == ["a", "\u4e2d", "", "e\u0301"]
    assert cut(cells_of("a\u4e2db"), 2) == ["a", " "]
    assert cut(cells_of("a\u4e2db"), 3) == ["a", "\u4e2d", ""]
    assert draw("\r\u4e2d\u4e2d\r\x1b[1Cx") == [([], [" x\u4e2d"])]  # half of it is overwritten
