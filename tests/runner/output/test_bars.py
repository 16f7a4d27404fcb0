"""Lines beside progress bars, where output does not go to a terminal (tests of terminals: test_terminal.py)."""

import random
import re

import pytest

from horovod.runner.output.bars import ERASE, Place
from horovod.runner.output.display import Display
from horovod.runner.output.output import OutputSink
from tests.runner.launching import LIMIT, python, running

OUT, ERR = 1, 2


class Kept(OutputSink):
    def __init__(self, terminals=(), together=True):
        super().__init__(set(terminals), together)
        self.text = {OUT: b"", ERR: b""}
        self.all = b""

    def _emit(self, stream, data):
        self.text[stream] += data
        self.all += data


def test_a_line_begins_a_line():
    place = Place(terminal=False)
    assert place.add(b"[0]:50%\r", 1, False) == b"[0]:50%\r"
    assert place.add(b"[0]:60%\r", 1, False) == b"[0]:60%\r"  # a pipe that leads to a terminal in the end
    assert place.add(b"[0]:word\n[0]:70%\r\r", 1, False) == b"\n[0]:word\n[0]:70%\r"
    assert place.add(b"[1]:5%\r", 3, False) == b"\n[1]:5%\r"
    assert place.add(b"\r[1]:6%\r[1]:word\n", 3, False) == b"[1]:6%\r\n[1]:word\n"
    assert place.add(b"[1]:\r\n", 3, False) == b"[1]:\r\n"
    assert place.end() == b""
    assert place.add(b"[2]:7%\r", 5, False) == b"[2]:7%\r"
    assert (place.end(), place.end()) == (b"\n", b"")


def test_a_terminal_is_overwritten():
    place = Place(terminal=True)
    assert place.add(b"\r[0]:50%\r[0]:word\n[0]:60%\r", 1, True) == b"\r[0]:50%\r[0]:word\n[0]:60%\r"
    assert place.add(b"[1]:5%\r", 3, True) == ERASE + b"[1]:5%\r"
    assert place.add(b"[0]:word\n", 1, True) == b"\n[0]:word\n"
    assert place.add(b"[0]:70%\r", 1, True) == b"[0]:70%\r"
    assert place.add(b"[1]:word\n[1]:6%\r", 3, True) == b"\n[1]:word\n[1]:6%\r"  # a line is not erased
    assert place.add(b"[0]:80%\r", 1, False) == b"\n[0]:80%\r"


@pytest.mark.parametrize("terminal", [False, True])
def test_only_the_other_half_of_the_last_line_ends_it(terminal):
    place = Place(terminal)
    place.add(b"[0]:a\r", 1, False)
    assert place.go_on(2) == b""
    assert place.in_bar
    assert place.go_on(1) == b"\n"
    assert not place.in_bar
    assert place.go_on(1) == b""


@pytest.mark.parametrize("collapse", [False, True])
def test_whatever_ranks_write_every_line_begins_with_its_rank(collapse):
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
        text = sink.all.decode()
        assert text.endswith("\n")
        for line in text.removesuffix("\n").split("\n"):
            assert re.match(r"\[[01](-1)?\]<std(out|err)>:", line), (line, text)
            whose = re.findall(r"\[([01-]+)\]<(\w+)>:", line)
            assert len(set(whose)) == 1, line  # nor is there anything of another rank in it
        if not collapse:
            for (rank, stream), given in written.items():
                name = {OUT: "stdout", ERR: "stderr"}[stream]
                shown = re.findall(rf"\[{rank}\]<{name}>:([^\r\n]*)", text)
                assert [word for word in shown if word] == [word for word in re.split("[\r\n]+", given) if word]


def test_places_are_told_apart():
    apart, same = Kept(together=False), Kept(together=True)
    for sink in (apart, same):
        sink.put(ERR, b"[0]:50%\r", 2)
        sink.put(OUT, b"[0]:word\n", 1)
        sink.put(ERR, b"[1]:word\n", 4)
    assert apart.text == {OUT: b"[0]:word\n", ERR: b"[0]:50%\r\n[1]:word\n"}
    assert same.all == b"[0]:50%\r\n[0]:word\n[1]:word\n"
    # Lines in a file, bars on the terminal: the bars of several ranks do not run into each other.
    mixed = Kept(terminals=(ERR,), together=False)
    mixed.put(ERR, b"[0]:50%\r", 2)
    mixed.put(OUT, b"[0]:word\n", 1)
    mixed.put(ERR, b"[1]:5%\r", 4)
    assert mixed.text == {OUT: b"[0]:word\n", ERR: b"[0]:50%\r\n[1]:5%\r"}


def test_the_end_of_a_line_that_came_torn_is_not_a_line_of_its_own():
    sink = Kept()
    display = Display(sink, {0: "h", 1: "h"})
    display.show(0, OUT, b"a\r", 0.0)
    display.show(1, OUT, b"b\n", 0.0)
    display.show(0, OUT, b"\nc\n", 0.0)
    assert sink.all == b"[0]<stdout>:a\r\n[1]<stdout>:b\n[0]<stdout>:c\n"


def test_a_job_with_progress_bars_in_a_file(tmp_path):
    """As tqdm writes them, beside print, with an end in the middle of a bar."""
    code = (
        "import os, sys, time\n"
        "for i in range(4):\n"
        "    sys.stderr.write(f'\\r{i}/4'); sys.stderr.flush()\n"
        "    print('loss', i)\n"
        "    time.sleep(0.02)\n"
        "sys.stderr.write('\\r4/4\\r'); sys.stderr.flush()\n"
        "time.sleep(0.5)\n"
        "os._exit(int(os.environ['HOROVOD_RANK']))\n"
    )
    log = tmp_path / "log"
    with open(log, "wb") as file, running(["-np", "2", *python(code)], stdout=file, stderr=file) as job:
        assert job.process.wait(LIMIT) == 1
    lines = log.read_bytes().decode().removesuffix("\n").split("\n")
    assert [line for line in lines if not re.match(r"(\[[01]\]<std(out|err)>|horovodrun):", line)] == []
    for rank in (0, 1):
        assert [line for line in lines if line.startswith(f"[{rank}]<stdout>")] == [
            f"[{rank}]<stdout>:loss {i}" for i in range(4)
        ]
    assert any(line.startswith("horovodrun: rank 1 on host") for line in lines)
