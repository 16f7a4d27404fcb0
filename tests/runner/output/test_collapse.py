import random

import pytest

from horovod.runner.output import repeats
from horovod.runner.output.display import Display
from horovod.runner.output.repeats import Collapser
from tests.runner.output.test_output import Shown


def shown_of(size, *written, hosts=None, **options):
    """Return the output for (rank, stream, text) written in sequence, then after the delay."""
    shown = Shown()
    display = Display(shown, hosts or dict.fromkeys(range(size), "h"), collapse=True, **options)
    for rank, stream, text in written:
        display.show(rank, stream, text, 0.0)
    at_once = shown.take().decode()
    display.tick(repeats.DELAY)
    return at_once, shown.take().decode()


@pytest.mark.parametrize(
    ("written", "at_once", "later"),
    [
        pytest.param([(0, 1, b"a\n"), (1, 1, b"a\n")], "[0-1]<stdout>:a\n", "", id="all ranks: at once"),
        pytest.param([(1, 1, b"a\n")], "", "[1]<stdout>:a\n", id="one rank: after the delay"),
        pytest.param([(0, 1, b"a\n"), (1, 2, b"a\n")], "", "[0]<stdout>:a\n[1]<stderr>:a\n", id="streams stay apart"),
        pytest.param(
            [(0, 1, b"a\na\n"), (1, 1, b"a\n")], "[0-1]<stdout>:a\n", "[0]<stdout>:a\n", id="twice by one rank"
        ),
        pytest.param(
            [(0, 1, b"a\nb\n"), (1, 1, b"b\na\n")],
            "[0]<stdout>:a\n[0-1]<stdout>:b\n",
            "[1]<stdout>:a\n",
            id="in the order of each rank",
        ),
        pytest.param(
            [(0, 1, b"loss 1\nsaved\n"), (1, 1, b"loss 2\nsaved\n")],
            "[0]<stdout>:loss 1\n[1]<stdout>:loss 2\n[0-1]<stdout>:saved\n",
            "",
            id="behind a line of its own",
        ),
        pytest.param(
            [(0, 1, b"saved\nend\n"), (1, 1, b"mine\nsaved\n")],
            "",
            "[0]<stdout>:saved\n[0]<stdout>:end\n[1]<stdout>:mine\n[1]<stdout>:saved\n",
            id="never before what the rank wrote first",
        ),
        pytest.param(
            [(0, 2, b"err\n"), (0, 1, b"out\n"), (1, 2, b"err\n"), (1, 1, b"out\n")],
            "[0-1]<stderr>:err\n[0-1]<stdout>:out\n",
            "",
            id="errors are kept in their place",
        ),
        pytest.param(
            [(0, 1, b"\r50%\r60%\n"), (1, 1, b"\r60%\n")], "", "[0-1]<stdout>:60%\n", id="progress bars at their end"
        ),
    ],
)
def test_equal_lines_are_shown_once(written, at_once, later):
    assert shown_of(2, *written) == (at_once, later)


def test_no_rank_waits_for_an_ended_one():
    shown = Shown()
    display = Display(shown, {0: "h", 1: "h", 2: "h"}, collapse=True)
    assert display.next_due() is None
    display.show(0, 1, b"a", 0.0)
    display.finish(0, 0.0)
    display.show(2, 1, b"a\n", 0.0)
    assert display.next_due() == repeats.DELAY
    assert shown.take() == b""
    display.finish(1, 0.0)
    assert shown.take() == b"[0,2]<stdout>:a\n"
    display.show(2, 1, b"b\n", 0.0)
    assert shown.take() == b"[2]<stdout>:b\n"


def test_held_lines_are_bounded(monkeypatch):
    monkeypatch.setattr(repeats, "MAX_HELD_BYTES", 1000)
    monkeypatch.setattr(repeats, "GROUP_LIMIT", 50)
    for line in (b"%0300d\n", b"%d\n"):
        collapser = Collapser(range(2))
        waiting = 0
        for number in range(500):
            collapser.add(0, 1, line % number, 0.0)
            waiting += 1 - len(collapser.take(0.0))
            assert waiting <= min(50, 1000 // len(line % number) + 1)
        assert waiting > 0
    # Only as much as necessary is dropped, and its bytes are no longer counted.
    collapser = Collapser(range(2))
    for number in range(3):
        collapser.add(0, 1, b"%0400d\n" % number, 0.0)
    assert [int(group.line) for group in collapser.take(0.0)] == [0]
    collapser.add(0, 1, b"%0400d\n" % 3, 0.0)
    assert [int(group.line) for group in collapser.take(0.0)] == [1]
    collapser.add(0, 1, b"%0150d\n" % 4, 9.0)
    assert collapser.take(0.0) == []
    assert [int(group.line) for group in collapser.take(repeats.DELAY)] == [2, 3]  # due lines
    assert collapser.take(repeats.DELAY) == []


def test_every_rank_gets_its_lines_in_their_order():
    random.seed(5)
    shown = []
    written = {rank: [] for rank in range(4)}
    collapser = Collapser(range(4))
    now = 0.0
    for _ in range(3000):
        rank, stream, line = random.randrange(4), random.choice((1, 2)), b"%d\n" % random.randrange(6)
        now += random.choice((0.0, 0.01, 0.2))
        collapser.add(rank, stream, line, now)
        written[rank].append((stream, line))
        if random.random() < 0.7:
            shown += collapser.take(now)
    shown += collapser.take_all()
    assert {r: [(g.stream, g.line) for g in shown if r in g.ranks] for r in range(4)} == written
    assert len(shown) < 2500
