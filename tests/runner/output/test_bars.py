"""Progress bars in output that does not go to a terminal (for a terminal: test_area.py, test_screens.py)."""

import random
import re

import pytest

from horovod.runner.output.display import LOG_INTERVAL, Display
from horovod.runner.output.terminal import HOLD
from tests.runner.output.sinks import Kept

OUT, ERR = 1, 2


def test_bars_are_logged_at_intervals_and_at_the_end():
    sink = Kept()
    display = Display(sink, {0: "h", 1: "h"})
    for step in range(2500):  # 25 s
        now = step / 100
        display.show(0, ERR, b"\r%4d/2500" % step, now)
        display.tick(now)
        assert display.next_due() in (None, pytest.approx(10.0 * (step // 1000 + 1), abs=0.02))
        if step == 1700:
            display.show(1, OUT, b"line\n", now)
    assert sink.take().decode() == ("[0]<stderr>:1000/2500\n[1]<stdout>:line\n[0]<stderr>:2000/2500\n")
    display.show(0, ERR, b"\r2500/2500\n", 25.0)
    assert sink.take().decode() == ""
    assert display.next_due() == 25.0 + HOLD
    display.tick(25.0 + HOLD)
    assert sink.take().decode() == "[0]<stderr>:2500/2500\n"
    assert display.next_due() is None


def test_the_log_has_the_last_state_of_an_idle_bar_once():
    sink = Kept()
    display = Display(sink, {0: "h"})
    display.show(0, ERR, b"\r10%", 0.0)
    display.show(0, ERR, b"\r20%", 1.0)
    display.tick(LOG_INTERVAL)
    assert sink.take().decode() == "[0]<stderr>:20%\n"
    assert display.next_due() is None
    display.finish(0, 99.0)
    assert sink.take().decode() == ""
    display.show(0, OUT, b"\r1\n\r2\n\r   \r", 100.0)
    display.show(0, ERR, b"word\n", 100.0)  # written later by the program
    assert sink.take().decode() == "[0]<stdout>:1\n[0]<stdout>:2\n[0]<stderr>:word\n"


@pytest.mark.parametrize("collapse", [False, True])
def test_every_line_starts_with_its_rank(collapse):
    random.seed(5)
    for _ in range(30):
        sink = Kept()
        display = Display(sink, {0: "h", 1: "h"}, collapse=collapse)
        written = {}
        for step in range(60):
            rank, stream = random.randrange(2), random.choice((OUT, ERR))
            piece = "".join(random.choice(("\r", "\n", "\r\n", "a", "word", "7%")) for _ in range(4))
            written[rank, stream] = written.get((rank, stream), "") + piece
            display.show(rank, stream, piece.encode(), step * 0.1)
        for rank in (0, 1):
            display.finish(rank, 7.0)
        display.flush()
        sink.end_bars()
        text = sink.text.decode()
        assert text.endswith("\n")
        for line in text.removesuffix("\n").split("\n"):
            whose = re.findall(r"\[([01-]+)\]<(\w+)>:", line)
            assert len(whose) == 1, (line, text)  # and it contains nothing of another rank
            assert line.startswith("["), line
        if not collapse:
            for (rank, stream), lines in written.items():
                name = {OUT: "stdout", ERR: "stderr"}[stream]
                shown = [line.removesuffix("\r") for line in re.findall(rf"\[{rank}\]<{name}>:(.*)", text)]
                assert [line for line in shown if line] == [
                    line for line in map(overwritten, lines.split("\n")) if line
                ]


def overwritten(line):
    """Return the visible rest of a line in which each \r moves back to its beginning."""
    shown = ""
    for part in line.split("\r"):
        shown = part + shown[len(part) :]
    return shown
