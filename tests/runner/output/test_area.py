"""The bottom area of a terminal, as bytes; test_screens.py shows the resulting screen."""

import os

import pytest

from horovod.runner.output.bars import ERASE, FRAME, Area, Bars
from horovod.runner.output.output import DRAW_LIMIT, OutputQueue
from horovod.runner.output.row import Row
from tests.runner.output.sinks import Kept

OUT, ERR = 1, 2


def row(text):
    row = Row()
    row.go_back("")
    row.write(0, text, list(text), "")
    return row


def bars(*texts, stream=ERR, prefix=""):
    return Bars(stream, prefix, [row(text) for text in texts])


def lines_of(area, columns=20, lines=24):
    area.frame(columns, lines, 0.0)
    return list(area._drawn)


def test_each_bar_has_its_line_in_the_order_of_the_ranks():
    area = Area(full=True)
    area.draw((10, ERR), bars("c", prefix="[10]:"))
    area.draw((1, ERR), bars("b", prefix="[1]:"))
    area.draw((1, OUT), bars("a", "", "a2", stream=OUT, prefix="[1]:"))
    assert lines_of(area) == ["[1]:a", "[1]:a2", "[1]:b", "[10]:c"]  # no empty lines
    area.draw((1, OUT), bars(stream=OUT))
    assert lines_of(area) == ["[1]:b", "[10]:c"]


def test_long_bars_are_cut_and_extra_ones_counted():
    area = Area(full=True)
    for rank in range(32):
        area.draw((rank, ERR), bars("x" * 100, prefix=f"[{rank}]:"))
    shown = lines_of(area, columns=42, lines=24)
    assert [len(line) for line in shown[:22]] == [39] * 22
    assert shown[22:] == ["and 10 more progress bars"]
    area.set_status("waiting")
    assert lines_of(area, columns=42, lines=24)[21:] == ["and 11 more progress bars", "waiting"]
    assert lines_of(area, columns=42, lines=2) == ["[0]:" + "x" * 35]
    area.set_status("")
    assert lines_of(area, columns=14, lines=3) == ["[0]:xxxxxxx", "and 31 more"]
    # A prefix leaves room for the bar; wide characters are not split.
    area = Area(full=True)
    area.draw((0, ERR), bars("50%", prefix="[0@some.very.long.host.name]<stderr>:"))
    assert lines_of(area, columns=23) == ["[0@some.ve50%"]
    area.draw((0, ERR), bars("50%", prefix="\u4e2d\u4e2d\u4e2d\u4e2d"))
    assert lines_of(area, columns=9) == ["\u4e2d 50%"]


def test_lines_go_above_bars_and_frames_are_spaced():
    sink = Kept((OUT, ERR), full=True)
    sink.draw((0, ERR), bars("5%"))
    sink.refresh(1.0)
    assert sink.take() == b"\r5%\x1b[K"
    sink.draw((0, ERR), bars("6%"))
    sink.refresh(1.0)
    assert sink.take() == b""
    assert sink.next_due() == 1.0 + FRAME
    sink.put(OUT, b"line\n")
    sink.put(ERR, b"other\n")
    sink.refresh(1.0)
    assert sink.take() == ERASE + b"line\nother\n\r6%\x1b[K"  # in one write, to avoid flicker
    assert sink.next_due() is None
    sink.draw((0, ERR), bars("7%"))
    sink.pending = DRAW_LIMIT + 1  # a slow terminal
    sink.refresh(2.0)
    assert (sink.take(), sink.next_due()) == (b"", None)
    sink.pending = 0
    sink.end_bars()
    assert sink.take() == ERASE
    sink.refresh(2.0)
    assert sink.take() == b""


def test_the_status_line_is_below_the_bars():
    sink = Kept((OUT, ERR), full=True)
    sink.status("one")
    sink.status("one")
    sink.refresh(1.0)
    assert sink.take() == b"\rone\x1b[K"
    sink.status("two")
    sink.draw((3, ERR), bars("5%"))
    sink.refresh(2.0)
    assert sink.take() == b"\r\r5%\x1b[K\r\n\rtwo\x1b[K"
    sink.status("")
    sink.refresh(3.0)
    assert sink.take() == b"\r\x1b[1A\r5%\x1b[K\x1b[J"
    plain = Kept((OUT, ERR))
    assert not plain.rewrites
    plain.status("one")
    plain.refresh(1.0)
    assert plain.take() == b""


def test_terminals_with_only_carriage_returns_get_one_line():
    sink = Kept((OUT, ERR))
    sink.draw((1, ERR), bars("50%", prefix="[1]:"))
    sink.refresh(1.0)
    assert sink.take() == b"\r[1]:50%"
    sink.draw((0, ERR), bars("5%", prefix="[0]:"))
    sink.refresh(2.0)
    assert sink.take() == b"\r[0]:5% (and 1 more progress bar)"
    sink.draw((1, ERR), bars())
    sink.refresh(3.0)
    assert sink.take() == b"\r[0]:5%" + b" " * 26
    sink.put(OUT, b"line\n")
    sink.refresh(3.0)
    assert sink.take() == b"\r      \rline\n\r[0]:5%"


@pytest.mark.parametrize("waiting", [False, True])
def test_drawings_are_cleaned_up(monkeypatch, waiting):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(os, "isatty", lambda fd: True)
    read_end, write_end = os.pipe()
    queue = OutputQueue(write_end, write_end)
    queue.draw((0, ERR), bars("5%"))
    queue.write()
    if waiting:
        queue._emit(ERR, b"not written when a program is interrupted\n")
    queue.close()
    # Partially written text is not erased.
    assert os.read(read_end, 1000) == b"\r5%\x1b[K" + (b"\r\n" if waiting else ERASE)
    os.close(read_end)
    os.close(write_end)
